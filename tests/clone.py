"""A clone that holds only the start scripts, with a stub for the program they start."""

import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import packaging
import uv

SOURCE = Path(__file__).resolve().parent.parent
FILES = (
    "start.sh",
    "start_single.sh",
    "start_4gpu.sh",
    "airlock",
    "test.sh",
    ".ci/run",
    "machine/gpus/cuda_driver.py",
    "machine/processes/parent.py",
)
UV = Path(uv.find_uv_bin())
# The base Python of the environment that runs these tests.
BASE_PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
# Everything that the scripts may need from the system besides a Python.
TOOLS = ("bash", "sh", "env", "cat", "readlink", "sed")

STUB = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:], "env": dict(os.environ), "file": __file__, "path": sys.path,
    "pid": os.getpid(), "prefix": sys.prefix,
}))
sys.exit(int(os.environ.get("STUB_STATUS", "0")))
"""
PYPROJECT = """
[project]
requires-python = ">=3.11,<3.14"
dependencies = ["airlock-tiny>=1.0"]
[project.optional-dependencies]
dev = ["pytest>=8"]
[tool.pytest.ini_options]
markers = ["gpu: needs one", "long: takes long", "runs: starts ranks", "sample: one of them"]
"""


class Clone:
    """The clone at ROOT, whose path contains a space; its PATH is only BIN, which has uv."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "my clone"
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
        (self.bin / "python3").symlink_to(BASE_PYTHON)
        (self.bin / "uv").symlink_to(UV)
        for name in FILES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.root / name)
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE / "setup", self.root / "setup", ignore=unwanted)
        self.write("launch/__init__.py", "")
        self.write("launch/__main__.py", STUB)
        self.write("pyproject.toml", PYPROJECT)
        self.write("constraints.txt", "")
        self.pin(self.wheels("1.0"))
        self.env = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "PIP_CONFIG_FILE": os.devnull,
        }

    @property
    def marker(self) -> Path:
        """The file that marks the environment as complete."""
        return self.root / ".venv/.airlock-installed"

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def wheels(self, version: str, megabytes: int = 0) -> str:
        """Return the requirement of the package airlock-tiny, of that size, in a local folder."""
        folder = self.root.parent / "wheels"
        folder.mkdir(exist_ok=True)
        make_wheel(folder / f"airlock_tiny-{version}-py3-none-any.whl", megabytes)
        return f"--no-index\n--find-links {folder}\nairlock-tiny=={version}\n"

    def pin(self, requirements: str) -> None:
        self.write("requirements.txt", requirements)
        self.write("requirements-dev.txt", "-r requirements.txt\n")

    def fake_venv(self) -> Path:
        """Create a `.venv` that counts as complete without packages: the stub needs none."""
        python = self.root / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.symlink_to(BASE_PYTHON)
        text = (self.root / "requirements.txt").read_text()
        self.write(".venv/.airlock-installed", text)
        text += (self.root / "requirements-dev.txt").read_text()
        self.write(".venv/.airlock-installed-dev", text)
        return python

    def run(
        self, *arguments: str, script: str = "start.sh", cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script, named relative to the root, to its end.

        Nothing of our own environment is passed on.
        """
        return self.execute([str(self.root / script), *arguments], cwd, env)

    def execute(
        self, command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd or self.root.parent,
            env=self.env | (env or {}),
            capture_output=True,
            text=True,
            check=False,
        )

    def stub(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Run a script and return what the stub for `python -m launch` saw."""
        result = self.run(*arguments, **options)
        assert result.returncode == 0, result.stderr
        return dict(json.loads(result.stdout))


def make_wheel(
    path: Path, megabytes: int = 0, *, code: str = "", needs: str = "", script: str = ""
) -> Path:
    """Write a wheel of the package and version in its file name; return its path.

    It contains `megabytes` of zeros, which compress to nearly nothing, requires the package
    `needs`, and installs a program of its own name if `script` is its text.
    """
    name, version = path.name.split("-")[:2]
    info, data = f"{name}-{version}.dist-info", f"{name}-{version}.data"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    files: dict[str, str | bytes] = {
        f"{name}.py": f"version = {version!r}\n{code}",
        f"{data}/data/zeros": bytes(megabytes << 20),
        f"{data}/scripts/{name}": script,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files = {file: text for file, text in files.items() if text}
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            member = zipfile.ZipInfo(file)
            member.external_attr = (stat.S_IFREG | 0o755) << 16  # pip checks that it is executable
            wheel.writestr(member, text)
    return path


def torch_with_cuda(clone: Clone) -> str:
    """Return the requirement of a torch that depends on CUDA's libraries, in a local folder."""
    folder = clone.root.parent / "cuda"
    folder.mkdir(exist_ok=True)
    make_wheel(folder / "torch-9.0-py3-none-any.whl", needs="nvidia-cuda-runtime")
    make_wheel(folder / "nvidia_cuda_runtime-13.0.96-py3-none-any.whl")
    return f"--no-index\n--find-links {folder}\ntorch==9.0\n"


def torch_for_cpu(clone: Clone, build: str = "cpu") -> str:
    """Return the requirement of a torch without them, named like the CPU build or another."""
    folder = clone.root.parent / build
    folder.mkdir()
    make_wheel(folder / f"torch-9.0+{build}-py3-none-any.whl")
    return f"--no-index\n--find-links {folder}\ntorch==9.0\n"


def environment(folder: Path, **versions: str) -> Path:
    """Create a virtual environment in FOLDER with packaging, and the metadata of VERSIONS."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    shutil.copytree(Path(packaging.__file__).parent, site / "packaging")
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def tool(path: Path, text: str) -> Path:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@functools.cache
def installed_in(folder: Path) -> Clone:
    """Return a clone after its first start, with a real .venv. Only to be read, or copied."""
    made = Clone(folder / "installed")
    result = made.run()
    assert result.returncode == 0, result.stderr
    return made


def start_before(clone: Clone, folder: Path) -> Clone:
    """Bring CLONE to its state after a first start, by copying the shared one in FOLDER."""
    shutil.copytree(installed_in(folder).root, clone.root, symlinks=True, dirs_exist_ok=True)
    return clone
