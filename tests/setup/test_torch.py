"""The build of torch that the clone's environment gets, and what is reported about it."""

from pathlib import Path

import pytest

from tests.clone import UV, Clone, tool, torch_for_cpu, torch_with_cuda

HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()


@pytest.fixture
def pytorch_org(clone: Clone) -> Clone:
    """Return a clone whose uv uses a local folder instead of PyTorch's own index."""
    folder = torch_for_cpu(clone).splitlines()[1]
    older = torch_for_cpu(clone, "cu126").splitlines()[1]
    clone.pin(torch_with_cuda(clone))
    script = f"""#!/bin/sh
for word; do
    shift
    case $word in
        --torch-backend=cpu) set -- "$@" {folder} ;;
        --torch-backend=cu126) set -- "$@" {older} ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec "{UV}" "$@"
"""
    tool(clone.bin / "uv", script)
    return clone


def torch_of(clone: Clone) -> str:
    """Return the version of torch in the clone's environment."""
    (folder,) = clone.root.glob(".venv/lib/*/site-packages/torch-*.dist-info")
    return folder.name.removeprefix("torch-").removesuffix(".dist-info")


@pytest.mark.runs
@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_without_a_driver_torch_is_its_build_for_cpu_and_that_is_said(pytorch_org: Clone) -> None:
    before = {*pytorch_org.root.parent.iterdir()}
    pytorch_org.env |= {"FORCE_COLOR": "1", "UV_NATIVE_TLS": "1"}  # which change what uv prints
    result = pytorch_org.run("tiny")
    made = {path.name for path in {*pytorch_org.root.parent.iterdir()} - before}
    assert made <= {".cache"}, "something was made where the command was typed"
    assert result.returncode == 0, result.stderr
    assert torch_of(pytorch_org) == "9.0+cpu"
    assert "no NVIDIA driver here: torch will be its build for CPU, without ~3 GB" in result.stderr
    root = pytorch_org.root
    otherwise = f"rm -rf '{root}/.venv'; AIRLOCK_TORCH=cuda '{root}/start.sh' tiny"
    assert f"{otherwise}\n" in result.stderr
    assert pytorch_org.execute([str(pytorch_org.bin / "sh"), "-c", f"/bin/{otherwise}"]).stdout
    assert torch_of(pytorch_org) == "9.0"


@pytest.mark.runs
def test_with_a_driver_torch_is_its_build_for_cuda_unless_another_is_wanted(
    pytorch_org: Clone,
) -> None:
    tool(pytorch_org.bin / "nvidia-smi", "#!/bin/sh\n")
    assert pytorch_org.run("tiny").returncode == 0
    assert torch_of(pytorch_org) == "9.0"
    pytorch_org.write(".venv/.airlock-installing", "")  # killed: it is made anew
    pytorch_org.write("constraints.txt", "# other\n")
    result = pytorch_org.run("tiny", AIRLOCK_TORCH="cpu")
    assert "as AIRLOCK_TORCH says: torch will be its build for CPU" in result.stderr
    assert torch_of(pytorch_org) == "9.0+cpu"


@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_a_driver_that_is_older_gets_the_build_that_runs_on_it(pytorch_org: Clone) -> None:
    tool(pytorch_org.bin / "nvidia-smi", "#!/bin/sh\necho 550.54.15\n")
    result = pytorch_org.run("32b")
    assert result.returncode == 0, result.stderr
    assert torch_of(pytorch_org) == "9.0+cu126"
    why = "the NVIDIA driver is 550: torch will be its build cu126, as what comes is built for CUDA"
    assert f"{why} 13, which needs 580 or newer\n" in result.stderr

    pytorch_org.write(".venv/.airlock-installing", "")
    pytorch_org.write("constraints.txt", "# other\n")
    tool(pytorch_org.bin / "nvidia-smi", "#!/bin/sh\necho 470.82.01\n")
    result = pytorch_org.run("32b")  # nothing runs on it: preflight says so, of what there is
    assert result.returncode == 0, result.stderr
    assert torch_of(pytorch_org) == "9.0"
    assert "the NVIDIA driver 470 is older than 525; what comes is built for" in result.stderr


@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_without_that_builds_index_what_mends_it_is_said_before_anything_is_fetched(
    clone: Clone,
) -> None:
    clone.pin("torch==9.0\n")
    tool(clone.bin / "nvidia-smi", "#!/bin/sh\necho 570.124.06\n")
    folder = torch_with_cuda(clone).splitlines()[1].partition(" ")[2]
    away = {"HTTPS_PROXY": "http://127.0.0.1:9", "UV_HTTP_RETRIES": "0", "PIP_FIND_LINKS": folder}
    clone.env |= away | {"UV_DEFAULT_INDEX": f"file://{clone.root.parent}/none"}
    result = clone.run("32b")
    assert result.returncode == 0, result.stderr
    assert torch_of(clone) == "9.0"
    index = "https://download.pytorch.org/whl/cu129"
    mend = f"rm -rf '{clone.root}/.venv'; PIP_EXTRA_INDEX_URL={index} '{clone.root}/start.sh' 32b\n"
    assert mend in result.stderr
    assert "torch's build cu129 cannot be had (" in result.stderr
    assert result.stderr.index(mend) < result.stderr.index("Resolved"), "uv had begun"


@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_where_pytorchs_own_index_cannot_be_reached_it_is_what_pip_would_give(clone: Clone) -> None:
    clone.pin("torch==9.0\n")
    folder = torch_with_cuda(clone).splitlines()[1].partition(" ")[2]
    away = {"HTTPS_PROXY": "http://127.0.0.1:9", "UV_HTTP_RETRIES": "0", "PIP_FIND_LINKS": folder}
    away |= {"UV_DEFAULT_INDEX": f"file://{clone.root.parent}/none"}
    clone.env |= away
    result = clone.run("tiny")
    assert result.returncode == 0, result.stderr
    assert torch_of(clone) == "9.0"
    assert "no NVIDIA driver here, yet torch's build for CPU cannot be had (" in result.stderr
    assert "PIP_EXTRA_INDEX_URL=URL names an index that has it" in result.stderr

    clone.write(".venv/.airlock-installing", "")
    clone.write("constraints.txt", "# other\n")
    result = clone.run("tiny", AIRLOCK_TORCH="cpu")  # an explicit request: no other build will do
    assert result.returncode == 4
    assert "airlock: torch's build for CPU cannot be had (log: " in result.stderr


@pytest.mark.runs
def test_where_pip_is_set_to_a_build_for_cpu_that_is_taken_and_others_refused(clone: Clone) -> None:
    folder = torch_for_cpu(clone).splitlines()[1].partition(" ")[2]
    clone.pin("torch==9.0\n")
    clone.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder}
    result = clone.run(AIRLOCK_TORCH="gpu")
    assert result.returncode == 4
    assert "AIRLOCK_TORCH=gpu: it can be cuda or cpu" in result.stderr
    result = clone.run("tiny", AIRLOCK_TORCH="cuda")
    assert result.returncode == 4
    assert "where pip is set to look there is torch 9.0+cpu\n" in result.stderr
    result = clone.run("tiny", AIRLOCK_TORCH="cpu")
    assert result.returncode == 0, result.stderr
    assert "build for CPU" not in result.stderr
    assert torch_of(clone) == "9.0+cpu"
