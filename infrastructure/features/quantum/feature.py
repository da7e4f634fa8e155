"""The quantum step: during training, a sampler repeatedly solves a discrete decision."""

from infrastructure.core.features import Command, Feature

_HERE = "infrastructure.features.quantum"

FEATURE = Feature(
    name="quantum",
    fields={
        "": f"{_HERE}.config:QuantumSection",
        "training": f"{_HERE}.config:QuantumTraining",
    },
    flags={"training.optimization_frequency": ("--quantum-steps", "--optimization-frequency")},
    aliases={"resource.quantum.": "quantum.", "resources.quantum.": "quantum."},
    enables={"quantum": "optimization_frequency"},
    needs_own_loop=True,
    adds_weights=False,
    plugins={
        "temper.extensions": {
            "quantum": f"{_HERE}.training.quantum_extension:QuantumExtension",
        }
    },
    commands={
        "quantum": Command(
            f"{_HERE}.command", "solve a binary optimization problem (QUBO) from a file", "More"
        )
    },
    contradictions=f"{_HERE}.checks:CONTRADICTIONS",
    facts={"quantum_step": f"{_HERE}.checks:problem_of"},
    checks=f"{_HERE}.checks:problems",
    own_code=f"{_HERE}.checks:own_samplers",
    report=(f"{_HERE}.report:quantum_steps",),
    run_files=("quantum.json",),
    on_samples=f"{_HERE}.samples:choose_among_samples",
    names={
        "apply_quantum_solution": f"{_HERE}.training.functional",
        "formulate_quantum_problem": f"{_HERE}.training.functional",
        "quantum_optimize": f"{_HERE}.training.functional",
        "quantum_solve": f"{_HERE}.solving.quantum_step",
        "should_optimize": f"{_HERE}.training.functional",
    },
)
