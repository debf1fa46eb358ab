import numpy as np
import pytest

from partywall.blame.code import Code, hadamard


@pytest.mark.parametrize("least", [*range(1, 65)])
def test_a_hadamard_matrix_has_orthogonal_columns_and_a_constant_first_one(least: int):
    matrix = hadamard(least)
    order = len(matrix)
    assert order >= least
    assert (matrix.T @ matrix == order * np.eye(order)).all()
    assert (matrix[:, 0] == 1).all()


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 11, 16])
def test_a_block_is_balanced_in_singles_pairs_and_against_joint_effects(columns: int):
    for number in range(3):
        code = np.where(Code(columns, 7).block(number), 1, -1)
        slots = len(code)
        assert (code.sum(axis=0) == 0).all()
        assert (code.T @ code == slots * np.eye(columns)).all(), "each two are pulsed together in a quarter"
        for first in range(columns):
            joint = code[:, :1] * code[:, first : first + 1] * code
            assert (joint.sum(axis=0) == 0).all(), "no effect is mixed up with a joint effect of two"


def test_no_slot_of_many_suspects_pulses_all_of_them():
    code = Code(16, 1).blocks(20)
    assert code.sum(axis=1).max() < 16


def test_a_code_follows_from_its_seed_and_blocks_differ():
    code = Code(4, 5)
    assert (code.blocks(3) == Code(4, 5).blocks(3)).all()
    assert (code.block(0) != code.block(1)).any()
    assert (code.block(0) != Code(4, 6).block(0)).any()
