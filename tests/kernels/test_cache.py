"""The compile cache: built once, found by every process, never half an entry."""

import ast
import dataclasses
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import membound
import pytest
import torch
from membound.ops.tiling import RowTiling
from membound.runtime import cache, compiler, key

KERNELS = str(Path(membound.__file__).parents[1])


def kernel_of(columns):
    with membound.runtime.record_launches() as launches:
        membound.softmax(torch.empty(3, columns, device="meta"))
    return launches[0].kernel


KERNEL = kernel_of(1)

#: Start of a script: ``kernel`` is the one above. Run with a folder of the suite and more.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, membound
with membound.runtime.record_launches() as launches:
    membound.softmax(torch.empty(3, 1, device="meta"))
kernel = launches[0].kernel
"""


def python(script, *arguments, start=SCRIPT):
    return subprocess.Popen(
        [sys.executable, "-c", start + script, KERNELS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process):
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return stdout.split(), stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder of this test's own, which does not exist yet."""
    monkeypatch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    """The entry of KERNEL, to be copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path_factory.mktemp("sound")))
        return membound.runtime.artifact(KERNEL).folder


@pytest.fixture
def filled(folder, entry):
    """The entry of KERNEL in this test's own cache."""
    return shutil.copytree(entry, folder / entry.name)


@pytest.fixture
def compiles(monkeypatch):
    """The kernels that are compiled from here on."""
    names = []
    original = compiler.compile_kernel

    def counted(kernel, folder):
        names.append(kernel.name)
        return original(kernel, folder)

    monkeypatch.setattr(compiler, "compile_kernel", counted)
    return names


@pytest.fixture(autouse=True)
def no_warning():
    """A warning that a test does not expect is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_the_folder_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path))
    assert membound.runtime.cache_folder() == tmp_path
    monkeypatch.delenv("MEMBOUND_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert membound.runtime.cache_folder() == tmp_path / ".cache" / "membound"


def test_a_kernel_is_compiled_once(folder, compiles):
    first = membound.runtime.artifact(KERNEL)
    assert first.folder.parent == folder
    assert first == membound.runtime.artifact(KERNEL)
    membound.runtime.build([KERNEL, KERNEL])
    assert compiles == [KERNEL.name]
    assert {path.name for path in first.folder.iterdir()} == {
        "kernel.o",
        "kernel.cubin",
        "kernel.so",
        "facts.json",
    }


def test_build_tells_of_each_kernel_once(filled):
    seen = []
    other = kernel_of(2)
    membound.runtime.build([KERNEL, other, KERNEL], jobs=1, progress=seen.append)
    assert seen == [KERNEL, other]


def test_a_kernel_that_cannot_be_built_does_not_stop_the_others(folder, monkeypatch):
    def compile_kernel(kernel, draft):
        if kernel == KERNEL:
            raise RuntimeError(f"no {kernel.name}")
        return fake(draft)

    monkeypatch.setattr(compiler, "compile_kernel", compile_kernel)
    seen, others = [], [kernel_of(2), kernel_of(3)]
    with pytest.raises(RuntimeError, match=f"no {KERNEL.name}"):
        membound.runtime.build([KERNEL, *others], jobs=1, progress=seen.append)
    assert seen == others


def test_a_kernel_that_fails_in_another_process_is_told(folder):
    broken = dataclasses.replace(KERNEL, dtype="int8")
    with pytest.raises(KeyError, match="int8"):
        membound.runtime.build([broken, KERNEL], jobs=2)
    assert membound.runtime.find(KERNEL) is not None
    assert membound.runtime.find(broken) is None


def test_another_process_loads_it_without_the_compiler(filled):
    script = """
sys.modules["cutlass"] = None  # importing it fails
import tvm_ffi
from membound.runtime import launcher
found = membound.runtime.artifact(kernel)
launcher._load_runtime_library()
function = tvm_ffi.load_module(str(found.library))["run"]
assert isinstance(function, tvm_ffi.Function)
print(found.digest, torch.cuda.is_initialized())
"""
    words, _ = output(python(script))
    assert words == [json.loads((filled / "facts.json").read_text())["digest"], "False"]


def test_importing_needs_neither_compiler_nor_gpu(folder):
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import membound, torch
loaded = [name for name in ("cutlass", "tvm_ffi") if name in sys.modules]
assert not loaded, loaded
assert not torch.cuda.is_initialized()
sys.modules["cutlass"] = None
x = torch.empty(3, 1, device="meta")
with membound.runtime.record_launches() as launches:
    membound.softmax(x)
try:
    membound.runtime.artifact(launches[0].kernel)
except membound.runtime.MissingDependency as error:
    print(error)
"""
    words, _ = output(python(script, start=""))
    assert KERNEL.name in words
    assert "pip" in words
    assert list(folder.glob("softmax*/")) == []


def truncate(entry):
    library = entry / "kernel.so"
    library.write_bytes(library.read_bytes()[:1000])


def flip_a_bit(entry):
    content = bytearray((entry / "kernel.cubin").read_bytes())
    content[len(content) // 2] ^= 1
    (entry / "kernel.cubin").write_bytes(content)


def no_json(entry):
    (entry / "facts.json").write_bytes(b'{"name": "softm\xff')


def other_json(entry):
    (entry / "facts.json").write_text('{"sha256": {}}')


def json_of_no_object(entry):
    (entry / "facts.json").write_text("[]")


def no_hashes(entry):
    (entry / "facts.json").write_text('{"digest": "", "sha256": null}')


DAMAGES = [truncate, flip_a_bit, no_json, other_json, json_of_no_object, no_hashes]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_anew(filled, compiles, damage):
    sound = membound.runtime.artifact(KERNEL)
    digest, library = sound.digest, sound.library.read_bytes()
    damage(filled)
    with pytest.warns(UserWarning, match=f"damaged kernel cache entry .*{filled.name}"):
        again = membound.runtime.artifact(KERNEL)
    assert compiles == [KERNEL.name]
    assert (again.digest, again.library.read_bytes()) == (digest, library)
    membound.runtime.artifact(KERNEL)
    assert compiles == [KERNEL.name]


@pytest.mark.parametrize("file", ["facts.json", "kernel.so", "kernel.o", "kernel.cubin"])
def test_an_incomplete_entry_is_built_anew(filled, compiles, file):
    (filled / file).unlink()
    membound.runtime.artifact(KERNEL)
    assert compiles == [KERNEL.name]
    assert (filled / file).is_file()


def test_a_file_in_the_place_of_an_entry_gives_way(filled, compiles):
    shutil.rmtree(filled)
    filled.write_text("no folder")
    assert membound.runtime.artifact(KERNEL).folder == filled
    assert compiles == [KERNEL.name]
    assert (filled / "kernel.so").is_file()


def below_a_file(tmp_path):
    (tmp_path / "file").touch()
    return tmp_path / "file" / "cache"


# where nobody may write, not even root
@pytest.mark.parametrize("place", [below_a_file, lambda _: Path("/proc/self")])
def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, monkeypatch, place):
    folder = place(tmp_path)
    monkeypatch.setenv("MEMBOUND_CACHE_DIR", str(folder))
    monkeypatch.setattr(cache, "_process_folder", lambda: SimpleNamespace(name=str(tmp_path / "t")))
    (tmp_path / "t").mkdir()
    compiled = []

    def compile_kernel(kernel, draft):
        compiled.append(kernel)
        return fake(draft)

    monkeypatch.setattr(compiler, "compile_kernel", compile_kernel)
    with pytest.warns(UserWarning, match="cannot write .*Set MEMBOUND_CACHE_DIR"):
        found = membound.runtime.artifact(KERNEL)
    assert found.library.is_file()
    assert folder not in found.folder.parents
    with pytest.warns(UserWarning, match="this process only"):
        assert membound.runtime.artifact(KERNEL) == found
    other = kernel_of(2)
    built = []
    with pytest.warns(UserWarning, match="this process only"):
        membound.runtime.build([KERNEL, other], jobs=2, progress=built.append)
        assert membound.runtime.artifact(other).library.is_file()
    assert set(built) == {KERNEL, other}
    assert compiled == [KERNEL, other]


def test_a_sound_entry_is_read_without_writing(filled, compiles, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError("read-only")

    monkeypatch.setattr(cache, "_writable", refuse)
    monkeypatch.setattr(cache, "_locked", refuse)
    filled.chmod(0o555)
    filled.parent.chmod(0o555)
    try:
        assert membound.runtime.artifact(KERNEL).folder == filled
        membound.runtime.build([KERNEL])
    finally:
        filled.parent.chmod(0o755)
        filled.chmod(0o755)
    assert compiles == []


def test_other_users_can_read_what_one_has_built(folder):
    before = os.umask(0o022)
    try:
        found = membound.runtime.artifact(KERNEL)
    finally:
        os.umask(before)
    assert found.folder.stat().st_mode & 0o777 == 0o755
    for file in found.folder.iterdir():
        assert file.stat().st_mode & 0o444 == 0o444, file.name


def fake(draft):
    for name in ("kernel.o", "kernel.cubin", "kernel.so"):
        (draft / name).write_bytes(name.encode())
    return "d" * 64


def test_other_source_toolchain_or_configuration_is_another_entry(monkeypatch):
    name = key.entry_name(KERNEL)
    assert key.entry_name(kernel_of(2)) != name
    for part, value in {
        "toolchain": lambda: {"nvidia-cutlass-dsl": "0"},
        "source_digest": lambda path: "0",
        "_source": lambda path: key._Source("0", ()),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(key, part, value)
            assert key.entry_name(KERNEL) != name
    assert key.entry_name(KERNEL) == name


@pytest.mark.parametrize(
    ("owner", "fact"), [(type(KERNEL), "shared_bytes"), (RowTiling, "warp_slots")]
)
def test_what_host_code_computes_for_the_device_is_part_of_the_key(monkeypatch, owner, fact):
    name = key.entry_name(KERNEL)
    monkeypatch.setattr(owner, fact, property(lambda self: 4096))
    assert key.entry_name(KERNEL) != name


def test_device_code_calls_no_method_of_a_configuration():
    """What such a call returns would be missing in the key."""
    kinds = [RowTiling, *subclasses(membound.runtime.Kernel)]
    methods = {
        name
        for kind in kinds
        for name, member in inspect.getmembers_static(kind)
        if inspect.isfunction(member) and not name.startswith("__")
    }
    assert "full_width" in methods
    for path in (Path(KERNELS) / "membound" / "device").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value).rpartition(".")[2]
                if of in ("kernel", "tiling"):
                    assert node.func.attr not in methods, f"{path.name}:{node.lineno}"


def subclasses(kind):
    return [each for direct in kind.__subclasses__() for each in (direct, *subclasses(direct))]


def test_a_source_is_told_by_all_it_imports_and_not_by_its_package(tmp_path):
    def digest(name, changed=None):
        copy = tmp_path / name
        shutil.copytree(Path(KERNELS) / "membound", copy)
        if changed:
            with (copy / changed).open("a") as out:
                out.write("\n# A remark.\n")
        return key.source_digest(copy / "device" / "softmax.py")

    same = digest("one")
    assert digest("two") == same
    assert digest("three", "device/rows.py") != same
    assert digest("four", "device/softmax.py") != same
    assert digest("five", "device/norm.py") == same


def test_processes_that_start_cold_compile_once(folder, tmp_path):
    script = """
import time
from pathlib import Path
from membound.runtime import compiler
compile_kernel = compiler.compile_kernel
def counted(kernel, draft):
    Path(sys.argv[2], f"compiled{sys.argv[3]}").touch()
    return compile_kernel(kernel, draft)
compiler.compile_kernel = counted
Path(sys.argv[2], sys.argv[3]).touch()
while not Path(sys.argv[2], "go").exists():
    time.sleep(0.01)
print(membound.runtime.artifact(kernel).digest)
"""
    numbers = range(8)
    processes = [python(script, tmp_path, number) for number in numbers]
    wait_for(lambda: all((tmp_path / str(number)).exists() for number in numbers), processes)
    (tmp_path / "go").touch()
    results = [output(process) for process in processes]
    assert len({words[0] for words, _ in results}) == 1
    assert [stderr for _, stderr in results if "Warning" in stderr] == []
    assert [path.name for path in folder.glob("*/")] == [key.entry_name(KERNEL)]
    assert len(list(tmp_path.glob("compiled*"))) == 1


#: What a build hangs in when it is killed: the compiler, and the move of a whole draft.
HANGS = {
    "compiling": """
def hang(kernel, draft):
    (draft / "kernel.o").write_bytes(b"half")
    Path(sys.argv[2]).touch()
    time.sleep(60)
compiler.compile_kernel = hang
""",
    "moving": """
def hang(draft, folder):
    Path(sys.argv[2]).touch()
    time.sleep(60)
Path.rename = hang
""",
}


@pytest.mark.parametrize("where", HANGS)
def test_a_killed_build_leaves_no_entry_and_no_lock(folder, tmp_path, compiles, where):
    start = (
        f"{SCRIPT}\nimport time\nfrom pathlib import Path\nfrom membound.runtime import compiler"
    )
    script = f"{HANGS[where]}\nmembound.runtime.artifact(kernel)"
    process = python(script, tmp_path / "started", start=start)
    wait_for((tmp_path / "started").exists, [process])
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / key.entry_name(KERNEL)).exists()
    assert len(list(folder.glob(".draft-*"))) == 1

    found = membound.runtime.artifact(KERNEL)
    assert list(folder.glob(".draft-*")) == []
    assert compiles == [KERNEL.name]
    assert found.library.stat().st_size > 1000


def test_a_failed_build_leaves_nothing(folder, monkeypatch):
    def fail(kernel, draft):
        (draft / "kernel.o").write_bytes(b"half")
        raise RuntimeError("no")

    monkeypatch.setattr(compiler, "compile_kernel", fail)
    with pytest.raises(RuntimeError, match="no"):
        membound.runtime.artifact(KERNEL)
    assert list(folder.glob("*/")) == []


def wait_for(condition, processes):
    end = time.monotonic() + 60
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
