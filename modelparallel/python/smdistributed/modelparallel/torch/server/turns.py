"""Which phase of the pipeline goes next on a rank: the rule of its schedule, for the server and for its simulation."""

from __future__ import annotations


class Turns:
    """The turns of one rank.

    Simple: forward before backward. Interleaved: backward before forward, as "Pipeline Execution with PyTorch" of the
    library's published guide has it, with two exceptions. A forward that resumes goes first: it is on its way from one
    rank to the next, and that one may be waiting. And the last backward that is ready lets one new forward pass, as
    1F1B alternates (PipeDream, Narayanan et al. 2019, section 3.2): a micro-batch whose forward ends here comes back
    for its backward by way of the first rank; without a backward in hand this rank would have nothing to do until then.

    Args:
        pipeline: "interleaved", "simple" or "_only_forward".
    """

    def __init__(self, pipeline: str) -> None:
        self._backward_first = pipeline == "interleaved"
        self._passed = False

    def lets_pass(self, backwards: int) -> bool:
        """Return whether so many ready backward tasks would let a forward one go first that has not begun yet."""
        return self._backward_first and backwards == 1 and not self._passed

    def backward_next(self, forwards: int, backwards: int, resumes: bool) -> bool:
        """Take a turn: return whether it is a backward's.

        Args:
            forwards: how many forward tasks are ready.
            backwards: how many backward tasks are ready; it or `forwards` is not 0.
            resumes: whether one of the forward tasks has begun before.
        """
        if not forwards or not backwards:
            backward = backwards > 0
        elif not self._backward_first or resumes:
            return False
        else:
            backward = not self.lets_pass(backwards)
        self._passed = backwards > 0 and not backward
        return backward
