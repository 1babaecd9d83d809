"""Under the shield a job writes wherever it likes, and afterwards every file is as it was."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.runtime.shield import ShieldRequest
from tests.unit.runtime.house import (
    WAIT_S,
    House,
    Kept,
    Who,
    in_mounts_of_its_own,
    shielding,
    snapshot,
    wait_for,
)

Keep = Callable[..., Kept]

FILL = ("overwritten", "appended", "truncated", "deleted", "renamed", "mode", "touched", "replaced", "linked")

MUTATE = """
import os, shutil, sys
os.chdir(sys.argv[1]) if len(sys.argv) > 1 else None
open("overwritten", "w").write("new")
open("appended", "a").write("more")
os.truncate("truncated", 1)
os.remove("deleted")
os.rename("renamed", "renamed-to")
os.chmod("mode", 0o600)
os.utime("touched", (1, 1))
open("replacement", "w").write("new"); os.replace("replacement", "replaced")
os.link("linked", "linked-too")
os.remove("link"); os.symlink("elsewhere", "link")
open("created", "w").write("new")
os.mkdir("made"); open("made/file", "w").write("new")
shutil.rmtree("tree"); os.makedirs("tree/again")
open("deep/er/file", "w").write("new")
assert open("overwritten").read() == "new" and open("replaced").read() == "new"
assert open("appended").read() == "appendedmore"
assert not os.path.exists("deleted") and not os.path.exists("renamed")
assert open("renamed-to").read() == "renamed"
assert os.stat("mode").st_mode & 0o777 == 0o600 and os.stat("touched").st_mtime == 1
assert os.readlink("link") == "elsewhere" and os.listdir("tree") == ["again"]
"""


@pytest.fixture(autouse=True)
def _needs_a_shield(shield_user: Who) -> None:
    pass


def furnish(folder: Path, who: Who) -> None:
    """Files for the script above to change."""
    for name in FILL:
        (folder / name).write_text(name)
    (folder / "tree/branch").mkdir(parents=True)
    (folder / "tree/branch/leaf").write_text("leaf")
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep/er/file").write_text("file")
    (folder / "link").symlink_to("mode")
    for path in folder.rglob("*"):
        os.lchown(path, who.uid, who.gid)


def test_every_kind_of_change_in_the_working_folder_is_undone(keep: Keep, who: Who, house: House) -> None:
    furnish(house.work, who)
    before = snapshot(house.work)
    keep(who, house, MUTATE, shield=shielding(house)).finish()
    assert snapshot(house.work) == before


def test_the_same_job_without_a_shield_changes_the_folder(keep: Keep, who: Who, house: House) -> None:
    furnish(house.work, who)
    before = snapshot(house.work)
    kept = keep(who, house, MUTATE)
    kept.event("started")
    assert kept.ended()["exit_code"] == 0, kept.said()
    assert snapshot(house.work) != before


@pytest.mark.parametrize("name", ["other", "home", "tmp"])
def test_changes_by_absolute_path_are_undone(
    keep: Keep, who: Who, house: House, tmp_house: House, name: str
) -> None:
    folder = tmp_house.work if name == "tmp" else house.root / name
    furnish(folder, who)
    before = snapshot(folder)
    job = [who.python, "-c", MUTATE, str(folder)]
    keep(who, house, job, shield=shielding(house)).finish()
    assert snapshot(folder) == before


def test_files_straight_in_tmp_and_var_tmp_are_undone(keep: Keep, who: Who, house: House) -> None:
    made = [Path(folder, f"flatout-test-{os.urandom(8).hex()}") for folder in ("/tmp", "/var/tmp")]
    job = f"for path in {[str(path) for path in made]}: open(path, 'x').close()"
    try:
        keep(who, house, job, shield=shielding(house)).finish()
        assert not any(path.exists() for path in made)
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def test_relative_writes_are_undone_though_the_keeper_came_from_that_folder(
    keep: Keep, who: Who, house: House
) -> None:
    job = "import os; open('relative', 'w').close(); print(os.listdir(os.environ['HOUSE'] + '/work'))"
    kept = keep(who, house, job, shield=shielding(house))
    kept.finish()
    assert kept.said() == "['relative']\n"
    assert list(house.work.iterdir()) == []


def test_what_is_kept_receives_the_writes(keep: Keep, who: Who, house: House) -> None:
    inner = house.run / "inner"
    inner.mkdir()
    os.chown(inner, who.uid, who.gid)
    (house.run / "old").write_text("old")
    os.chown(house.run / "old", who.uid, who.gid)
    job = (
        "import os; os.chdir(os.environ['HOUSE'])\n"
        "open('run/new', 'w').write('new'); open('run/inner/new', 'w').write('new'); os.remove('run/old')\n"
        "open('lost', 'w').close()"
    )
    keep(who, house, job, shield=shielding(house, inner, house.root / "missing")).finish()
    assert (house.run / "new").read_text() == (inner / "new").read_text() == "new"
    assert not (house.run / "old").exists()
    assert not (house.root / "lost").exists()


def test_a_working_folder_that_is_kept_needs_no_proof(keep: Keep, who: Who, house: House) -> None:
    job = "import os; open('kept', 'w').close(); open('../other/lost', 'w').close()"
    keep(who, house, job, shield=shielding(house, house.work)).finish()
    assert (house.work / "kept").exists()
    assert list(house.other.iterdir()) == []


def test_the_output_of_the_job_stays_though_its_folder_is_protected(
    keep: Keep, who: Who, house: House
) -> None:
    request = ShieldRequest(scratch=house.scratch)
    kept = keep(who, house, "print('said')", shield=request, stdout=str(house.other / "out"))
    kept.finish()
    assert (house.other / "out").read_text() == "said\n"


@pytest.mark.parametrize("place", ["work", "run"])
def test_the_scratch_folder_may_lie_in_a_covered_or_kept_folder(
    keep: Keep, who: Who, house: House, place: str
) -> None:
    scratch = house.root / place / "scratch"
    scratch.mkdir()
    os.chown(scratch, who.uid, who.gid)
    job = (
        "import os; open('lost', 'w').write('x' * 1000)\n"
        f"print(os.listdir({str(scratch)!r}))\n"
        "def fail(error): raise error\n"
        "list(os.walk(os.environ['HOUSE'], onerror=fail))"
    )
    request = ShieldRequest(scratch=scratch, keep=(house.run,))
    kept = keep(who, house, job, shield=request, cleanup=(str(scratch),))
    kept.finish()
    assert kept.said() == "[]\n"
    assert not scratch.exists()
    assert list(house.work.iterdir()) == []


def test_large_data_is_not_copied(keep: Keep, who: Who, house: House) -> None:
    data = house.work / "data.bin"
    data.touch()
    os.truncate(data, 2 << 30)
    os.chown(data, who.uid, who.gid)
    before = data.stat()
    job = (
        "import os, time\n"
        "with open('data.bin', 'rb') as data: data.seek(1 << 30); assert data.read(4) == bytes(4)\n"
        "open('written', 'w').write('x' * 100_000)\n"
        "open('../run/ready', 'w').write('ready\\n'); time.sleep(600)"
    )
    kept = keep(who, house, job, shield=shielding(house))
    kept.shielded()
    wait_for(house.run / "ready")
    files = [path for path in house.scratch.rglob("*") if path.is_file()]
    taken = sum(path.lstat().st_blocks * 512 for path in files)
    # What the job wrote is there, and nothing else of any size.
    assert [path.name for path in files if path.stat().st_size == 100_000] == ["written"]
    assert taken < 1 << 20
    kept.let_go()
    kept.event("started")
    kept.ended()
    assert data.stat() == before


def test_the_job_sees_its_own_user_and_group(keep: Keep, who: Who, house: House) -> None:
    job = "import os; print(os.getuid(), os.getgid(), os.stat('.').st_uid, os.stat('.').st_gid)"
    kept = keep(who, house, job, shield=shielding(house))
    kept.finish()
    assert kept.said() == f"{who.uid} {who.gid} {who.uid} {who.gid}\n"


def test_what_the_user_may_not_write_stays_so(keep: Keep, who: Who, house: House) -> None:
    job = (
        "import os; print(*(os.access(path, os.W_OK) for path in ('/usr', '/tmp')), os.stat('/tmp').st_mode)"
    )
    kept = keep(who, house, job, shield=shielding(house))
    kept.finish()
    assert kept.said() == f"{who.uid == 0} True {Path('/tmp').stat().st_mode}\n"


def test_nothing_can_be_made_in_the_root_folder(keep: Keep, who: Who, house: House) -> None:
    path = Path(f"/flatout-test-{os.urandom(8).hex()}")
    job = f"import os\ntry: os.mkdir({str(path)!r})\nexcept OSError as error: print(error.errno)"
    try:
        kept = keep(who, house, job, shield=shielding(house))
        kept.finish()
        assert kept.said().strip().isdigit()
        assert not path.exists()
    finally:
        if path.exists():
            path.rmdir()


def test_a_socket_that_someone_listens_on_can_be_reached(keep: Keep, who: Who, house: House) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        path = house.other / "socket"
        server.bind(str(path))
        path.chmod(0o777)
        server.listen()
        server.settimeout(WAIT_S)

        def reply() -> None:
            with server.accept()[0] as line:
                line.sendall(b"hello")

        answer = threading.Thread(target=reply)
        answer.start()
        job = (
            "import os, socket; line = socket.socket(socket.AF_UNIX)\n"
            "line.connect(os.environ['HOUSE'] + '/other/socket'); print(line.recv(5))"
        )
        try:
            kept = keep(who, house, job, shield=shielding(house))
            kept.finish()
        finally:
            with socket.socket(socket.AF_UNIX) as unblock:
                unblock.connect(str(path))
            answer.join(WAIT_S)
        assert kept.said() == "b'hello'\n"


def test_what_is_mounted_below_a_protected_place_stays_visible(keep: Keep, who: Who, house: House) -> None:
    nested, sealed, single = (house.other / name for name in ("nested", "sealed", "single"))
    nested.mkdir()
    sealed.mkdir()
    single.write_text("hidden")
    (house.other / "real").write_text("shown")
    (house.other / "real").chmod(0o666)
    wrapper = in_mounts_of_its_own(
        who,
        f"mount -t tmpfs none {nested}; echo nested > {nested}/file; chown -R {who.uid}:{who.gid} {nested};"
        f"mount -t tmpfs none {sealed}; mkdir {sealed}/deep; mount -t tmpfs none {sealed}/deep;"
        f"mount -o remount,bind,ro {sealed};"
        f"mount --bind {house.other}/real {single}",
    )
    job = (
        "import os; os.chdir(os.environ['HOUSE'] + '/other')\n"
        "print(open('nested/file').read(), os.path.ismount('sealed/deep'), open('single').read())\n"
        "open('nested/file', 'w').write('new'); open('nested/new', 'w').close()\n"
        "try: open('single', 'w').write('new')\n"
        "except OSError: print('refused')\n"
        "open('../work/lost', 'w').close()"
    )
    kept = keep(who, house, job, shield=shielding(house), wrapper=wrapper)
    shield = kept.shielded()
    kept.event("started")
    assert kept.ended()["exit_code"] == 0, kept.said()
    assert kept.said() == "nested\n True shown\nrefused\n"
    assert str(nested) in shield["protected"]
    assert str(single) in shield["read_only"]
    assert (house.other / "real").read_text() == "shown"
    assert list(house.work.iterdir()) == []


def test_a_mount_is_as_before_when_the_job_has_ended(keep: Keep, who: Who, house: House) -> None:
    nested = house.work / "nested"
    nested.mkdir()
    # The mount belongs to this shell, which looks at it after the keeper has ended.
    script = f"mount -t tmpfs none {nested}; echo old > {nested}/file; chown -R {who.uid}:{who.gid} {nested}"
    wrapper = in_mounts_of_its_own(who, script)
    wrapper[4] = (
        wrapper[4].replace("exec ", "")
        + f"; ls {nested} > {house.run}/seen; cat {nested}/file >> {house.run}/seen"
    )
    job = "open('file', 'w').write('new'); open('more', 'w').close()"
    kept = keep(who, house, job, shield=shielding(house), wrapper=wrapper, cwd=str(nested))
    kept.finish()
    assert wait_for(house.run / "seen") == "file\nold\n"


def test_a_name_with_odd_characters_does_no_harm(keep: Keep, who: Who, house: House) -> None:
    odd = house.root / "a,b:c\\d e\nf"
    odd.mkdir()
    scratch = odd / "scratch"
    scratch.mkdir()
    for path in (odd, scratch):
        os.chown(path, who.uid, who.gid)
    request = ShieldRequest(scratch=scratch, keep=(house.run,))
    job = "open('lost', 'w').close()"
    keep(who, house, job, shield=request, cwd=str(odd), cleanup=(str(scratch),)).finish()
    assert list(odd.iterdir()) == []
