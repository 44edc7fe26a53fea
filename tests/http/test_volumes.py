"""Directories of the host inside of sandboxes, and the sizes that sandboxes come in."""

import os
import tempfile
import unittest
from pathlib import Path

from harness import Home, HttpTestCase, Refused, Server

# Whatever somebody inside would try to write where nothing may be written.
ESCAPES = """
touch /volumes/data/new
echo x > /volumes/data/given.txt
rm -f /volumes/data/given.txt
mv /volumes/data/given.txt /volumes/data/other
ln -s / /volumes/data/link
mkdir /volumes/data/directory
chmod 777 /volumes/data/given.txt
chown 1:1 /volumes/data/given.txt
truncate -s 0 /volumes/data/given.txt
mount -o remount,rw /volumes/data; touch /volumes/data/new
mount -o remount,bind,rw /volumes/data; touch /volumes/data/new
mount --bind /volumes/data /tmp && touch /tmp/new
umount /volumes/data; umount -l /volumes/data; touch /volumes/data/new
unshare -rm sh -c 'mount -o remount,bind,rw /volumes/data; touch /volumes/data/new'
unshare -rm sh -c 'mkdir /tmp/m; mount --bind /volumes/data /tmp/m; mount -o remount,bind,rw /tmp/m; touch /tmp/m/new'
touch /proc/1/root/volumes/data/new; touch /proc/self/root/volumes/data/new
""".strip().splitlines()


def processors(pid):
    """How many a process may use, as its cgroup says; None if it does not."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        for names, path in (line.split(":", 2)[1:] for line in lines):
            if "cpu" in names.split(","):
                group = Path(f"/sys/fs/cgroup/{names}{path}")
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            elif not names and Path(f"/sys/fs/cgroup{path}/cpu.max").exists():
                quota, period = Path(f"/sys/fs/cgroup{path}/cpu.max").read_text().split()
            else:
                continue
            return int(quota) / int(period) if quota.strip().isdigit() else None
    except OSError:
        return None


class Volumes(HttpTestCase):
    OWNER = 12345

    @classmethod
    def prepare(cls):
        # Beside the home, which cannot be shared, and readable for the users that sandboxes run as.
        cls.base = tempfile.TemporaryDirectory(prefix="belljar-http-volumes-")
        cls.addClassCleanup(cls.base.cleanup)
        os.chmod(cls.base.name, 0o755)
        cls.data, cls.kept = (Path(cls.base.name, name) for name in ("data", "kept"))
        for directory in (cls.data, cls.kept):
            directory.mkdir(mode=0o755)
        (cls.data / "given.txt").write_text("given")
        (cls.data / "out").symlink_to("/etc")
        if os.geteuid() == 0:
            os.chown(cls.kept, cls.OWNER, cls.OWNER)
        cls.arguments = ("--volumes", f"data={cls.data},kept={cls.kept}:rw")

    def setUp(self):
        self.client = self.server.client()
        self.session = self.client.call("execute_code", code="1")["session_id"]

    def command(self, line, **arguments):
        return self.client.call("execute_command", session_id=self.session, command=line, **arguments)

    def state(self):
        return sorted((path.name, path.is_symlink() or path.read_text(), path.lstat().st_mode, path.lstat().st_uid)
                      for path in self.data.iterdir())

    def test_read_only_is_read_only(self):
        self.assertEqual(self.command("cat /volumes/data/given.txt")["stdout"], "given")
        before = self.state()
        for line in ESCAPES:
            with self.subTest(line):
                done = self.command(line)
                self.assertFalse(done["success"], done)
                self.assertEqual(self.state(), before)
        ran = self.client.run(self.session, "open('/volumes/data/new', 'w')")
        self.assertEqual(ran["error"]["name"], "OSError", ran)
        with self.assertRaisesRegex(Refused, "Read-only"):
            self.client.call("upload_file", context_id=self.session, path="/volumes/data/new", content="x")
        self.assertEqual(self.state(), before)

    def test_a_link_out_leads_nowhere_but_inside(self):
        inside = self.command("cat /volumes/data/out/hostname /volumes/data/out/shadow")
        self.assertNotIn(Path("/etc/shadow").read_text()[:20] if os.geteuid() == 0 else "root:", inside["stdout"])

    def test_what_is_written_belongs_to_the_owner_of_the_directory(self):
        done = self.command("mkdir -p /volumes/kept/d && echo made > /volumes/kept/d/file && cat /volumes/kept/d/file")
        self.assertEqual((done["stdout"], done["exit_code"]), ("made\n", 0), done)
        made = self.kept / "d/file"
        self.assertEqual(made.read_text(), "made\n")
        owner = self.kept.stat()
        self.assertEqual((made.stat().st_uid, made.stat().st_gid), (owner.st_uid, owner.st_gid))
        self.assertEqual(made.parent.stat().st_uid, owner.st_uid)

    def test_nothing_made_inside_is_dangerous_outside(self):
        done = self.command("cp /bin/sh /volumes/kept/sh; chmod 6755 /volumes/kept/sh; mknod /volumes/kept/dev c 1 3; ls /volumes/kept")
        self.assertNotIn("dev", done["stdout"].split())
        made = self.kept / "sh"
        if made.exists() and os.geteuid() == 0:
            self.assertNotEqual(made.stat().st_uid, 0)

    def test_they_are_listed(self):
        listed = self.client.call("get_volume_path", session_id=self.session)
        self.assertEqual(listed["volume_path"], "/volumes/shared")
        self.assertEqual({volume["name"]: (volume["path"], volume["mode"]) for volume in listed["volumes"]}, {
            "shared": ("/volumes/shared", "rw"), "data": ("/volumes/data", "ro"), "kept": ("/volumes/kept", "rw")})
        self.assertNotIn(self.base.name, str(listed), "where it is on the host is nobody's business")


class Shared(unittest.TestCase):
    def test_the_shared_volume_outlives_session_and_server(self):
        home = Home()
        self.addCleanup(home.remove)
        with Server(home=home) as server:
            client = server.client()
            first = client.call("execute_command", command="echo kept > /volumes/shared/file; mkdir /volumes/shared/d")["session_id"]
            client.call("stop_session", session_id=first)
            self.assertEqual(client.call("execute_command", command="cat /volumes/shared/file")["stdout"], "kept\n")
            read = "console.log(require('fs').readFileSync('/volumes/shared/file', 'utf8'))"
            node = client.call("execute_code", template="node", code=read)
            self.assertEqual(node["stdout"].strip(), "kept")
        with Server(home=home) as server:
            self.assertEqual(server.client().call("execute_command", command="cat /volumes/shared/file")["stdout"], "kept\n")
        self.assertEqual(home.left(), [])


class Flavors(HttpTestCase):
    arguments = ("--flavors-small", "0.5:256", "--flavors-medium", "1:512", "--flavors-large", "2:1024")
    SIZES = {"small": 256, "medium": 512, "large": 1024}

    def test_memory_is_limited_and_what_happened_is_told(self):
        client = self.server.client()
        for flavor, megabytes in self.SIZES.items():
            with self.subTest(flavor):
                allocate = lambda size, **rest: client.call("execute_code", code=f"d = b'x' * ({size} << 20); print(len(d) >> 20)", **rest)
                fits = allocate(megabytes // 2, flavor=flavor)
                self.assertEqual(fits["stdout"], f"{megabytes // 2}\n", fits)
                bursts = allocate(megabytes * 2, session_id=fits["session_id"])
                self.assertFalse(bursts["success"])
                self.assertRegex(str(bursts), "(?i)memory")
                # The session can be used again.
                again = client.call("execute_code", code="print(1)", session_id=fits["session_id"])
                self.assertEqual(again["stdout"], "1\n", again)

    def test_a_command_is_limited_too(self):
        client = self.server.client()
        done = client.call("execute_command", flavor="small", command="python3", args=["-c", "d = b'x' * (600 << 20); print('too much')"])
        self.assertFalse(done["success"], done)
        self.assertNotIn("too much", done["stdout"])

    def test_processors_are_limited(self):
        client = self.server.client()
        made = {flavor: client.call("execute_code", flavor=flavor, code="import time; began = time.process_time()")["session_id"]
                for flavor in self.SIZES}
        if quotas := {quota for pid in self.home.tree() if (quota := processors(pid))}:
            self.assertLessEqual({0.5, 1.0, 2.0}, quotas)
        spin = "end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time() - began)"
        used = float(client.call("execute_code", session_id=made["small"], code=spin)["stdout"])
        self.assertLess(used, 1.5 * 0.5 * 1.5, "half a processor, with much to spare")

    def test_what_a_session_is_can_be_asked(self):
        client = self.server.client()
        for flavor in (None, "small", "medium", "large"):
            made = client.call("execute_code", code="1", **({"flavor": flavor} if flavor else {}))["session_id"]
            shown = client.call("get_sessions", session_id=made)["sessions"][0]
            self.assertEqual((shown["flavor"], shown["template"]), (flavor or "small", "python"))
        message = self.assert_refused("INVALID_PARAMS", client, "execute_code", code="1", flavor="huge")
        self.assertIn("large", message)


if __name__ == "__main__":
    unittest.main()
