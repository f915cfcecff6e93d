"""Campaigns on a real Slurm of one machine: a controller and four nodes on loopback, 16 shards, and what
happens to them on a bad night: workers killed, asked to end, a node drained, one with a full disk, one
whose clock is an hour off. In the end one database holds all that was committed, and nothing twice."""
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time

QTURN = os.environ["QTURN_PROGRAM"]
SHARDS = 16
NODES = ("n1", "n2", "n3", "n4")
FULL, WRONG_CLOCK = "n4", "n2"

CONF = """ClusterName=qturn
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2,sched_min_interval=100000
KillWait=5
SlurmdTimeout=120
MailProg=/bin/true
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=1 RealMemory=1000
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=60 State=UP
"""

# What differs between nodes: their disks, and the clock of one.
PROLOG = """#!/bin/sh
echo "export TMPDIR={folder}/disk-$SLURMD_NODENAME"
[ "$SLURMD_NODENAME" = {wrong} ] && echo "export LD_PRELOAD={clock}"
exit 0
"""


def skip(why):
    print("SKIPPED:", why)
    sys.exit(0)


def find_program(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def free_ports(count):
    """A port, and `count` in a row behind it, that nobody listens on now."""
    for _ in range(100):
        first = random.randrange(20000, 29000)
        try:
            for port in range(first, first + count + 1):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    skip("no ports are free")


def wait_until(seconds, what, told):
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain for {told}")
        time.sleep(0.1)


class Slurm:
    """Daemons of their own: sockets, keys, ports, state and logs lie in one folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.processes = []
        self.environment = dict(os.environ, SLURM_CONF=str(self.folder / "slurm.conf"))

    def start(self):
        programs = {name: find_program(name) for name in ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")}
        for name, path in programs.items():
            if not path:
                skip(f"{name} is not installed (scripts/install-packages test)")
        for name in ("state", *(f"disk-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        port = free_ports(4)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        (self.folder / "slurm.conf").write_text(CONF.format(
            host=socket.gethostname().split(".")[0], port=port, first=port + 1, last=port + 4, folder=self.folder,
            user=user))
        prolog = self.folder / "prolog"
        prolog.write_text(PROLOG.format(folder=self.folder, wrong=WRONG_CLOCK, clock=os.environ["QTURN_WRONG_CLOCK"]))
        prolog.chmod(0o755)
        self.daemon(programs["munged"], "--foreground", "--force", f"--key-file={key}",
                    f"--socket={self.folder}/munge.sock", f"--pid-file={self.folder}/munged.pid",
                    f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munge.seed")
        if not self.comes_up(lambda: (self.folder / "munge.sock").exists()):
            skip("munged does not start here: " + self.log("munged.log"))
        self.daemon(programs["slurmctld"], "-D")
        if not self.comes_up(lambda: self.run("scontrol", "ping", check=False).stdout.find("UP") >= 0):
            skip("slurmctld does not start here: " + self.log("slurmctld.log"))
        for node in NODES:
            self.daemon(programs["slurmd"], "-D", "-N", node)
        if not self.comes_up(lambda: self.nodes("idle") == len(NODES)):
            skip("the nodes do not come up here: " + self.log("slurmctld.log") + self.log("slurmd-n1.log"))

    def comes_up(self, what):
        try:
            wait_until(15, what, "a daemon")
            return True
        except AssertionError:
            return False

    def daemon(self, *command):
        # A session of its own: signals for the test are not for it.
        output = open(self.folder / (pathlib.Path(command[0]).name + ".out"), "a")
        self.processes.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                                               stderr=output, start_new_session=True))

    def log(self, name):
        path = self.folder / name
        return path.read_text(errors="replace")[-1500:] if path.exists() else f"no {name}"

    def run(self, *command, check=True, **more):
        result = subprocess.run(command, env=dict(self.environment, **more), capture_output=True, text=True, timeout=120)
        if check and result.returncode != 0:
            raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result

    def nodes(self, state):
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.split("\n")
        return sum(line.split()[1].strip("*") == state for line in lines if line.strip())

    def jobs(self, *states):
        """Array tasks, "4_11", in one of these states; in any where none is given."""
        more = [f"--states={','.join(states)}"] if states else []
        # A controller that is busy answers late or not at all; that is no empty queue.
        answer = wait_until(60, lambda: self.answer("squeue", "-h", "-r", "-o", "%i %N", *more), "squeue's answer")
        return [line.split() for line in answer.stdout.splitlines() if line.strip()]

    def answer(self, *command):
        result = self.run(*command, check=False)
        return result if result.returncode == 0 else None

    def stop(self):
        self.run("scancel", "-u", "root", check=False)
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def uuids(database):
    """Trials in a file that others may write meanwhile."""
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1) as c:
            return {row[0] for row in c.execute("SELECT uuid FROM trial")}
    except sqlite3.OperationalError:
        return set()


def workers(campaign):
    out = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:1] == [QTURN.encode()] and b"work" in words and str(campaign).encode() in words:
            out.append(int(entry.name))
    return out


def fill_disk(folder):
    """A node's disk with little room on it; false where this process may not mount."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", folder], capture_output=True)
    return mounted.returncode == 0


def main():
    base = os.environ["QTURN_TEST_FOLDER"]
    # munged wants folders above its socket that others cannot write.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir=base))
    folder.chmod(0o755)
    slurm = Slurm(folder)
    full = False
    begun = time.monotonic()
    try:
        slurm.start()
        print(f"Slurm runs after {time.monotonic() - begun:.1f} s")
        full = fill_disk(folder / f"disk-{FULL}")
        night(slurm, folder, full)
        print(f"all of it took {time.monotonic() - begun:.1f} s")
        passed = True
    except AssertionError:
        for log in sorted((folder / "c.campaign.d" / "logs").glob("*")):
            print(f"---- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
        raise
    finally:
        slurm.stop()
        if full:
            subprocess.run(["umount", "-l", folder / f"disk-{FULL}"], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def night(slurm, folder, full):
    campaign = folder / "c.campaign"
    left = folder / "c.campaign.d"
    draw = random.Random(7)
    shapes = ",".join(f"1..{i + 2}x{64 * (1 + i % 4)}" for i in range(SHARDS))
    environment = {"QTURN_BACKEND": "cpu", "HOME": str(folder)}

    def qturn(*arguments, check=True):
        return slurm.run(QTURN, "cluster", *arguments, check=check, **environment)

    qturn("plan", "--op", "quantize", "--shape", shapes, "--shards", str(SHARDS), "--cores", "1", "--candidates", "4", "--rounds", "4",
          "--threads", "2", "-o", str(campaign))

    def submit():
        qturn("submit", str(campaign), "--cores", "1", "--time", "10", "--restarts", "20", "--work=--threads", "--work=2",
              "--work=--interval", "--work=0.5", "--work=--patience", "--work=2")

    committed = set()

    def look():
        """What lies committed on the nodes' disks and in the campaign's folder now."""
        for database in list(folder.glob("disk-*/quarterturn-*/shard-*/tuning.db")) + list(left.glob("shard-*.db")):
            committed.update(uuids(database))

    submit()
    wait_until(60, lambda: workers(campaign), "a worker")
    kills = told = requeued = 0
    drained = False
    end = time.monotonic() + 240
    while slurm.jobs() and time.monotonic() < end:
        look()
        alive = workers(campaign)
        if alive and kills < 4 and (kills < 2 or draw.random() < 0.4):
            os.kill(draw.choice(alive), signal.SIGKILL)
            kills += 1
        running = slurm.jobs("RUNNING")
        if running and told < 3 and (told < 1 or draw.random() < 0.4):
            slurm.run("scancel", "--signal=TERM", "--batch", draw.choice(running)[0], check=False)
            told += 1
        if not drained and kills + told >= 2:
            slurm.run("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
            drained = True
            requeued = sum(slurm.answer("scontrol", "requeue", job) is not None
                           for job, node in slurm.jobs("RUNNING") if node == "n3")
        time.sleep(0.25)
    assert not slurm.jobs(), f"the array did not end: {slurm.jobs()}"
    look()
    print(f"{kills} workers killed, {told} asked to end, {requeued} requeued from a drained node")
    assert kills >= 2 and told >= 1 and drained, (kills, told, drained)

    status = qturn("status", str(campaign), "--json")
    print(status.stderr)
    rows = [json.loads(line) for line in status.stdout.splitlines()]
    assert len(rows) == SHARDS, rows
    by_host = {row["host"] for row in rows}
    assert by_host, rows
    heartbeats = [json.loads(path.read_text()) for path in left.glob("shard-*.json")]
    ahead = [h for h in heartbeats if h["written_ns"] > (time.time() + 1800) * 1e9]
    assert ahead, "no worker had a clock that is off"
    if any(row["state"] == "done" and row["seen_s"] > 600 for row in rows):
        raise AssertionError(f"a clock that is off confuses: {rows}")
    last_of = {h["shard"]: h for h in sorted(heartbeats, key=lambda h: left.joinpath(
        f"shard-{h['shard']:04}-{h['worker']}.json").stat().st_mtime)}
    if any(h in ahead for h in last_of.values()):
        assert "ahead of" in status.stderr, status.stderr

    # In the morning: room on the disk, the node back, and the same command for what is left.
    missing = [row["shard"] for row in rows if row["answered"] < row["problems"]]
    print(f"shards without an answer: {missing}{' (a disk was full)' if full else ''}")
    if full:
        subprocess.run(["mount", "-o", "remount,size=64m", folder / f"disk-{FULL}"], check=True)
    slurm.run("scontrol", "update", "nodename=n3", "state=resume")
    early = qturn("collect", str(campaign), "-o", str(folder / "early.db"), "--json", check=False)
    assert early.returncode == (1 if missing else 0), early.stderr
    if missing:
        assert "no answer" in early.stderr, early.stderr
        submit()
        wait_until(120, lambda: not slurm.jobs(), "the second array")
        look()

    collected = qturn("collect", str(campaign), "-o", str(folder / "all.db"), "--publish", str(folder / "site"), "--json")
    row = json.loads(collected.stdout)
    assert row["answered"] == SHARDS and row["missing"] == 0 and row["conflicts"] == 0, row
    everything = uuids(folder / "all.db")
    copied = set().union(*(uuids(path) for path in left.glob("shard-*.db")))
    assert everything == copied, (len(everything), len(copied))
    assert len(everything) == row["new_trials"], (len(everything), row)
    lost = committed - everything
    assert not lost, f"{len(lost)} of {len(committed)} committed trials are lost"
    assert len(committed) >= 2 * SHARDS, len(committed)
    again = json.loads(qturn("collect", str(campaign), "-o", str(folder / "all.db"), "--json").stdout)
    assert again["new_trials"] == 0 and again["changed"] == 0, again
    print(f"{len(everything)} trials, {len(committed)} of them seen when they were committed; none lost")


if __name__ == "__main__":
    main()
