"""transformers has all that it has otherwise, and what it hardly needs is not imported with it."""

import subprocess
import sys
import textwrap

SLOW = '("scipy.optimize", "sklearn", "torchao")'


def run_alone(code: str) -> str:
    """In a process of its own: tests have imported transformers already."""
    imports = "import sys\nfrom infrastructure.core.importing import importing\n"
    return subprocess.run(
        [sys.executable, "-c", imports + textwrap.dedent(code)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_a_model_is_imported_without_libraries_that_it_does_not_call() -> None:
    """A function of one of them is the real one when it is called."""
    run_alone(
        f"""
        import numpy
        with importing():
            from transformers import LlamaForCausalLM
            from transformers.loss import loss_for_object_detection as detection
        assert not [name for name in {SLOW} if name in sys.modules]
        rows, columns = detection.linear_sum_assignment(cost_matrix=numpy.array([[9, 1], [1, 9]]))
        assert (rows.tolist(), columns.tolist()) == ([0, 1], [1, 0])
        import scipy.optimize
        assert scipy.optimize.minimize.__module__.startswith("scipy.optimize")
        from transformers.quantizers import quantizer_torchao
        assert type(quantizer_torchao.__loader__).__name__ == "SourceFileLoader"
        assert quantizer_torchao.__spec__.loader is quantizer_torchao.__loader__
        """
    )


def test_whoever_wants_more_of_a_library_meanwhile_gets_the_library() -> None:
    run_alone(
        """
        from types import ModuleType
        from infrastructure.core.transformers_imports import AROUND
        around = AROUND["transformers.loss"]
        with around(ModuleType("importer")):
            stand_in = sys.modules["scipy.optimize"]
            with around(ModuleType("another")):
                assert sys.modules["scipy.optimize"] is stand_in
            from scipy.optimize import minimize
            assert minimize.__module__ == "scipy.optimize._minimize"
            library = sys.modules["scipy.optimize"]
            assert library is not stand_in
        import scipy.optimize
        assert scipy.optimize is library
        with around(ModuleType("one more")):
            assert sys.modules["scipy.optimize"] is scipy.optimize
        """
    )


def test_all_models_are_listed_that_are_otherwise_and_are_read_once() -> None:
    listed = """
        from transformers import models
        def plain(part):
            if isinstance(part, dict):
                return sorted((str(key), plain(value)) for key, value in part.items())
            return str(part) if isinstance(part, str) else sorted(map(str, part))
        print(plain(models._import_structure))
        print(plain(sys.modules["transformers"]._class_to_module))
        """
    once = """
        from transformers.utils import import_utils
        assert import_utils.create_import_structure_from_path.__wrapped__.cache_info().hits
        """
    lightly = run_alone(
        "with importing():\n    import transformers\n" + textwrap.dedent(listed + once)
    )
    assert lightly == run_alone(listed)
    assert "LlamaForCausalLM" in lightly


def test_finders_are_as_they_were_afterwards_whatever_was_imported() -> None:
    run_alone(
        """
        finders = list(sys.meta_path)
        with importing():
            assert len(sys.meta_path) == len(finders) + 1
        assert sys.meta_path == finders
        with importing():
            sys.meta_path[:] = finders
        assert sys.meta_path == finders
        """
    )


def test_another_version_of_transformers_is_left_as_it_is() -> None:
    run_alone(
        """
        from types import ModuleType
        from infrastructure.core.transformers_imports import AROUND
        other = ModuleType("transformers.utils.import_utils")
        with AROUND["transformers.utils.import_utils"](other):
            pass
        assert not hasattr(other, "create_import_structure_from_path")
        """
    )


def test_what_packages_are_made_of_is_read_when_it_is_looked_up() -> None:
    run_alone(
        """
        from importlib import metadata
        read = metadata.packages_distributions
        with importing():
            from transformers.utils import import_utils
        assert metadata.packages_distributions is read
        distributions = import_utils.PACKAGE_DISTRIBUTION_MAPPING
        everything = read()
        assert "_all" not in vars(distributions)
        assert distributions.get("torch", []) == everything["torch"]
        assert "_all" not in vars(distributions)
        assert distributions.get("PIL", []) == everything["PIL"]  # of another name
        assert "_all" in vars(distributions)
        assert distributions.get("nothing of that name", []) == []
        assert dict(distributions) == everything
        assert len(distributions) == len(everything)
        """
    )


def test_a_package_without_a_name_of_its_own_is_searched_for() -> None:
    run_alone(
        """
        from infrastructure.core import transformers_imports
        transformers_imports.ALONE = ("PIL",)  # whose distribution is pillow
        assert "pillow" in map(str.lower, transformers_imports.Distributions()["PIL"])
        """
    )
