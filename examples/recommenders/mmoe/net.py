"""Multi-gate mixture of experts (Ma et al., KDD 2018): tasks share experts, each with its own weights."""

import pslaunch.runtime as paddle
import pslaunch.runtime.nn as nn
import pslaunch.runtime.nn.functional as F


class MMoELayer(nn.Layer):
    """Experts over the numbers; a gate and a tower for each task."""

    def __init__(self, feature_size, expert_num, expert_size, tower_size, gate_num):
        super().__init__()
        self.expert_num, self.expert_size = expert_num, expert_size
        self.experts = [
            self.add_sublayer(f"expert_{i}", nn.Linear(feature_size, expert_size)) for i in range(expert_num)
        ]
        self.gates, self.towers, self.outs = [], [], []
        for i in range(gate_num):
            self.gates.append(self.add_sublayer(f"gate_{i}", nn.Linear(feature_size, expert_num)))
            self.towers.append(self.add_sublayer(f"tower_{i}", nn.Linear(expert_size, tower_size)))
            self.outs.append(self.add_sublayer(f"out_{i}", nn.Linear(tower_size, 2)))

    def forward(self, x):
        """Return the chances of both labels for each task, [n, 2] each."""
        experts = paddle.concat([F.relu(expert(x)) for expert in self.experts], axis=1)
        experts = paddle.reshape(experts, [-1, self.expert_num, self.expert_size])
        chances = []
        for gate, tower, out in zip(self.gates, self.towers, self.outs, strict=True):
            weights = paddle.reshape(F.softmax(gate(x)), [-1, self.expert_num, 1])
            mixed = paddle.sum(paddle.multiply(experts, weights), axis=1)
            chance = F.softmax(out(F.relu(tower(mixed))))
            chances.append(paddle.clip(chance, min=1e-15, max=1.0 - 1e-15))
        return chances
