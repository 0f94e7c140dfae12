"""The theorems as studies: each measures a rate, or an identity, that the theory states, with kernels and networks at hand.

One file per statement; `common` says what such a study is, `sphere`, `arcs` and `logistic` hold data with known probabilities
and the estimators. What a study shows is in `lab/report/views/`.
"""
