"""The samplers of a configuration, and the largest problem that they support."""

from infrastructure.features.quantum.config import QuantumConfig


def test_a_problem_is_as_large_as_the_settings_and_the_samplers_allow() -> None:
    table: dict[tuple[int, str, tuple[str, ...]], tuple[int, int]] = {
        (5000, "auto", ()): (5000, 5000),
        (5000, "exact", ()): (20, 20),
        (7, "exact", ()): (7, 7),
        (5000, "azure-quantum", ("dense_annealer",)): (20, 5000),
        (30, "auto", ("exact",)): (30, 30),
    }
    for (limit, solver, fallback), expected in table.items():
        config = QuantumConfig(max_qubits=limit, solver=solver, fallback=list(fallback))
        assert (config.most_candidates, config.largest_problem) == expected
    config = QuantumConfig(solver="exact", fallback=["auto", "mine:Own"])
    named = [("solver", "exact"), ("fallback", "auto"), ("fallback", "mine:Own")]
    assert config.samplers() == named
