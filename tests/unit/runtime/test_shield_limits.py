"""Where a shield cannot be had, the job is not started; and shields under difficult conditions."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flatout.runtime import linux
from flatout.runtime.foreign import find_foreign
from flatout.runtime.keeper import EXIT_NO_SHIELD
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

RAN = "import os; open(os.environ['HOUSE'] + '/run/ran', 'w').close()"


@pytest.fixture(autouse=True)
def _needs_a_shield(shield_user: Who) -> None:
    pass


@pytest.fixture
def user(who: Who) -> Who:
    if who.uid == 0:
        pytest.skip("root's shield has no such limit")
    return who


@pytest.fixture
def root(who: Who) -> Who:
    if who.uid != 0:
        pytest.skip("root's shield alone can do this")
    return who


def assert_not_started(kept: Kept, house: House, reason: str) -> None:
    event = kept.event("shield")
    assert event["kind"] == "none"
    assert reason in event["reason"]
    assert kept.process.wait(WAIT_S) == EXIT_NO_SHIELD
    assert not (house.run / "ran").exists()
    assert not house.scratch.exists()


def without_namespaces() -> None:
    """Go where nobody, whoever he is, may make a namespace: where their number is limited to none."""
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def test_no_job_starts_where_namespaces_are_refused(keep: Keep, myself: Who, who: Who, house: House) -> None:
    if who != myself:
        pytest.skip("as the user who runs the tests")
    kept = keep(who, house, RAN, shield=shielding(house), preexec=without_namespaces)
    assert_not_started(kept, house, "the kernel refuses an overlay: unshare: No space left on device")


def test_the_same_job_starts_where_they_are_allowed(keep: Keep, who: Who, house: House) -> None:
    keep(who, house, RAN, shield=shielding(house)).finish()
    assert (house.run / "ran").exists()


def test_no_job_starts_in_a_folder_that_an_overlay_cannot_cover(keep: Keep, user: Who, house: House) -> None:
    nested = house.work / "nested"
    nested.mkdir()
    wrapper = in_mounts_of_its_own(user, f"mount -t tmpfs none {nested}")
    kept = keep(user, house, RAN, shield=shielding(house), wrapper=wrapper)
    assert_not_started(kept, house, f"nothing can be written in {house.work}")


@pytest.fixture
def shared_memory(who: Who) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="flatout-test-", dir="/dev/shm"))
    os.chown(folder, who.uid, who.gid)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("place", ["cwd", "home"])
def test_no_job_starts_where_its_writes_would_be_real(
    keep: Keep, who: Who, house: House, shared_memory: Path, place: str
) -> None:
    changes = {"cwd": str(shared_memory)} if place == "cwd" else {}
    if place == "home":
        house = dataclasses.replace(house, home=shared_memory)
    kept = keep(who, house, RAN, shield=shielding(house), **changes)
    assert_not_started(kept, house, f"what is written in {shared_memory} would reach the real folder")
    assert list(shared_memory.iterdir()) == []


def test_no_job_starts_beside_a_file_whose_group_an_overlay_cannot_keep(
    keep: Keep, user: Who, house: House
) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to make a file of another group")
    (house.work / "shared").write_text("shared")
    os.chown(house.work / "shared", user.uid, 4242)
    kept = keep(user, house, RAN, shield=shielding(house))
    assert_not_started(kept, house, f"{house.work}/shared belongs to")


def test_a_folder_of_another_group_is_written_to_and_undone(keep: Keep, who: Who, house: House) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to make a folder of another group")
    shared = house.work / "shared" / "inner"
    shared.mkdir(parents=True)
    for folder in (shared.parent, shared):
        os.chown(folder, who.uid, 4242)
    before = snapshot(house.work)
    keep(who, house, "open('shared/inner/new', 'w').close()", shield=shielding(house)).finish()
    assert snapshot(house.work) == before


def test_only_what_is_writable_and_not_ours_is_foreign(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to make a file of another group")
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    os.chown(tmp_path / "theirs", 0, 4242)
    os.chown(tmp_path / "theirs/file", 4242, 0)
    (tmp_path / "link").symlink_to("theirs")
    found = find_foreign(str(tmp_path))
    assert found.folders == (str(tmp_path / "theirs"),)
    assert found.files == (str(tmp_path / "theirs/file"),)
    assert find_foreign(str(tmp_path), look_at=0).files == ()


def test_a_home_that_does_not_exist_is_no_obstacle(keep: Keep, who: Who, house: House) -> None:
    house.home.rmdir()
    keep(who, house, RAN, shield=shielding(house)).finish()
    assert (house.run / "ran").exists()


def test_changes_go_to_memory_where_scratch_cannot_take_them(keep: Keep, who: Who, house: House) -> None:
    # Scratch is itself on an overlay, as everything is in most containers.
    layers = house.root / "layers"
    layers.mkdir()
    scratch = house.scratch / "inner"
    wrapper = in_mounts_of_its_own(
        who,
        f"mount -t tmpfs none {layers}; cd {layers}; mkdir l u w; mount -t overlay -o "
        f"lowerdir=l,upperdir=u,workdir=w none {house.scratch}; mkdir {scratch}; "
        f"chown -R {who.uid}:{who.gid} {house.scratch}; cd {house.work}",
    )
    (house.work / "old").write_text("old")
    os.chown(house.work / "old", who.uid, who.gid)
    before = snapshot(house.work)
    job = "open('old', 'w').write('new'); print(open('/proc/self/mounts').read().count('tmpfs /dev '))"
    request = ShieldRequest(scratch=scratch, keep=(house.run,))
    kept = keep(who, house, job, shield=request, wrapper=wrapper, cleanup=(str(scratch),))
    kept.finish()
    assert snapshot(house.work) == before
    # The memory was mounted there only while the shield was raised.
    assert kept.said() == f"{Path('/proc/self/mounts').read_text().count('tmpfs /dev ')}\n"


def test_root_without_the_right_to_mount_still_owns_the_files_of_others(
    keep: Keep, root: Who, house: House
) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    theirs = house.work / "theirs"
    theirs.write_text("old")
    theirs.chmod(0o600)
    os.chown(theirs, 1234, 4321)
    before = snapshot(house.work)
    job = (
        "import os; looks = os.stat('theirs'); print(os.getuid(), looks.st_uid, looks.st_gid)\n"
        "open('theirs', 'a').write('new'); print(open('theirs').read())"
    )
    wrapper = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    kept = keep(root, house, job, shield=shielding(house), wrapper=wrapper)
    kept.finish()
    assert kept.said() == "0 1234 4321\noldnew\n"
    assert snapshot(house.work) == before


def test_root_can_rename_a_folder(keep: Keep, root: Who, house: House) -> None:
    (house.work / "old/deep").mkdir(parents=True)
    before = snapshot(house.work)
    keep(
        root, house, "import os; os.rename('old', 'new'); os.listdir('new/deep')", shield=shielding(house)
    ).finish()
    assert snapshot(house.work) == before


def test_a_new_mode_on_a_large_file_copies_nothing_for_root(keep: Keep, root: Who, house: House) -> None:
    (house.work / "large").write_bytes(os.urandom(8 << 20))
    before = snapshot(house.work)
    job = (
        "import os, time; os.chmod('large', 0o600)\n"
        "open('../run/ready', 'w').write('ready\\n'); time.sleep(600)"
    )
    kept = keep(root, house, job, shield=shielding(house))
    kept.shielded()
    wait_for(house.run / "ready")
    copies = list(house.scratch.rglob("large"))
    assert len(copies) == 1
    assert copies[0].stat().st_blocks * 512 < 1 << 20
    kept.let_go()
    kept.event("started")
    kept.ended()
    assert snapshot(house.work) == before
