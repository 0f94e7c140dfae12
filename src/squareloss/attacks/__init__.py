"""Attacks on any module that gives K scores on inputs in [0, 1], in l_inf and l_2; the docs are in docs/attacks.md.

    result = autoattack(model, x, y, eps=8 / 255)       # the published suite, faster
    worst = worst_case(model, x, y, eps=2 / 255)        # the adaptive one for square loss, with a masking report
    print(result, worst, sep="\n")

Every attack returns an `AttackResult`: for each point whether it broke, by which attack, loss and step, and what it cost.
"""

from squareloss.attacks import losses
from squareloss.attacks._fold import fold_batch_norm
from squareloss.attacks._network import Prepared
from squareloss.attacks.apgd import apgd, apgd_targeted
from squareloss.attacks.autoattack import AutoAttack, autoattack
from squareloss.attacks.evaluation import AttackTable, EtaScores, evaluate
from squareloss.attacks.fab import fab_targeted
from squareloss.attacks.masking import MaskingReport, masking_report
from squareloss.attacks.noise import NoiseResult, gaussian_noise
from squareloss.attacks.pgd import pgd
from squareloss.attacks.results import AttackResult
from squareloss.attacks.square_attack import square_attack
from squareloss.attacks.worst_case import WorstCase, worst_case

__all__ = [
    "AttackResult",
    "AttackTable",
    "AutoAttack",
    "EtaScores",
    "MaskingReport",
    "NoiseResult",
    "Prepared",
    "WorstCase",
    "apgd",
    "apgd_targeted",
    "autoattack",
    "evaluate",
    "fab_targeted",
    "fold_batch_norm",
    "gaussian_noise",
    "losses",
    "masking_report",
    "pgd",
    "square_attack",
    "worst_case",
]
