"""The studies on images, one file per table of the paper, and what they share: networks, their training, and their measures.

plan      a line of a table -> cells: one per network and measurement
data      CIFAR, a part of it, or a stand-in
networks  trained once, kept in the scratch folder, measured by any number of cells
measures  clean (with calibration and noise), PGD by loss, the worst case, AutoAttack
beyond    what the paper has not: neural collapse, out-of-distribution detection, transfer of examples
costs     about how long each takes, for the time left that is shown
study     the study itself
"""
