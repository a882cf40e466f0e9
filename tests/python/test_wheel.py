"""The wheel carries what it needs beyond the standard libraries of Linux."""

import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import crossrank
import pytest

PACKAGE = Path(crossrank.__file__).parent
STANDARD = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-[a-z0-9-]+)\.so\.[0-9]+")
# Open MPI's plugin is opened only where Open MPI is.
BINARIES = [file for file in [*PACKAGE.glob("*.so*"), PACKAGE / "bin" / "crossrank"] if file.name != "libcrossrank_mpi.so"]

needs_readelf = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed (binutils)")


def dynamic(file: Path, tag: str) -> list[str]:
    text = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True, timeout=60).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


@needs_readelf
@pytest.mark.parametrize("file", BINARIES, ids=lambda file: file.name)
def test_every_library_is_in_the_wheel_or_standard(file):
    needed = [name for name in dynamic(file, "NEEDED") if not STANDARD.fullmatch(name)]
    assert [name for name in needed if not (PACKAGE / name).exists()] == []
    folders = [folder for path in dynamic(file, "RUNPATH") for folder in path.split(":") if folder]
    if needed:
        assert folders and folders[0] in ("$ORIGIN", "$ORIGIN/.."), f"{file.name} looks for {needed} in {folders}"
    assert not [folder for folder in folders if (Path(folder) / "libcrossrank.so").exists()], "it is that of a build"


def test_the_tag_names_one_module_for_all_versions_of_python():
    tags = re.findall(r"^Tag: (.*)$", metadata.distribution("crossrank").read_text("WHEEL") or "", re.MULTILINE)
    assert [tag.rsplit("-", 1)[0] for tag in tags] == ["cp311-abi3"]
