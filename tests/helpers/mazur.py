"""Case G18: Mazur's worked example of back-propagation, its inputs and its published gradients."""

from __future__ import annotations

INPUTS = {
    "data": [[0.05, 0.10]],
    "label": [[0.01, 0.99]],
    "fc_0_weight": [[0.15, 0.20], [0.25, 0.30]],
    "fc_0_bias": [0.35, 0.35],
    "fc_1_weight": [[0.40, 0.45], [0.50, 0.55]],
    "fc_1_bias": [0.60, 0.60],
}
OUTPUT = [[0.75136507, 0.77292847]]
LOSS = [0.298371109]
GRADIENTS = {
    "fc_1_weight": [[0.08216704, 0.08266763], [-0.02260254, -0.02274024]],
    "fc_0_weight": [[0.00043857, 0.00087714], [0.00049771, 0.00099543]],
    "fc_1_bias": [0.13849856, -0.03809824],
    "fc_0_bias": [0.00877135, 0.00995425],
    "data": [[0.00380427, 0.00474055]],
}
