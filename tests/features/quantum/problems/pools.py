"""Gradients as a pool of text has them: topics, near-duplicates, noise."""

import numpy as np
import numpy.typing as npt


def pool(
    num_candidates: int, num_features: int, seed: int, *, num_target: int = 16
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Candidates (n, d), a third noise and a third near-duplicates; target (m, d)."""
    random = np.random.default_rng(seed)
    topics = random.standard_normal((6, num_features))

    def draw(count: int, evenness: float) -> npt.NDArray[np.float32]:
        mixture = random.dirichlet(np.full(6, evenness), count)
        own = 0.7 * random.standard_normal((count, num_features))
        return (mixture @ topics + own).astype(np.float32)

    candidates = draw(num_candidates, 0.5)
    third = num_candidates // 3
    candidates[:third] = random.standard_normal((third, num_features))
    near = 0.05 * random.standard_normal((third, num_features))
    candidates[third : 2 * third] = candidates[-third:] + near
    return candidates, draw(num_target, 2.0)
