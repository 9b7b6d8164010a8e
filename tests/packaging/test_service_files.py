"""The systemd unit, the container files and their seccomp profile fit the broker that they start."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S
from tpc_broker import limits
from tpc_broker.metadata.listener_settings import plan_listeners
from tpc_broker.metadata.settings import listener_settings, load_settings
from tpc_broker.process import main
from tpc_broker.process.supervisor import EXIT_CANNOT_RUN

PACKAGING = Path(__file__).parent.parent.parent / "packaging"
IO_URING = {"io_uring_setup", "io_uring_enter", "io_uring_register"}


class LastWins(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    parser = LastWins(strict=False)
    parser.read(PACKAGING / "systemd" / "tpc-broker.service")
    return parser["Service"]


def test_the_unit_starts_the_command_as_it_is(service: configparser.SectionProxy) -> None:
    assert service["Environment"] == "TPC_ARGUMENTS="  # systemd leaves $TPC_ARGUMENTS out then
    words = shlex.split(service["ExecStart"].replace("$TPC_ARGUMENTS", "--cores 2"))
    assert words[0] == "/opt/tpc-broker/bin/tpc-broker"
    group = main.main
    assert words[1] in group.commands
    context = group.commands[words[1]].make_context(words[1], words[2:])
    assert context.params["data"] == "/var/lib/" + service["StateDirectory"]
    assert context.params["config"] == "/etc/tpc-broker/broker.properties"
    assert not context.params["listen"]  # it would be stronger than the file


def test_the_timer_s_unit_scrubs_the_broker_s_directory(service: configparser.SectionProxy) -> None:
    parser = LastWins(strict=False)
    parser.read(PACKAGING / "systemd" / "tpc-broker-scrub.service")
    words = shlex.split(parser["Service"]["ExecStart"])
    assert words[0] == shlex.split(service["ExecStart"])[0]
    command = main.main.commands[words[1]]
    assert command.make_context(words[1], words[2:]).params["data"] == "/var/lib/" + service["StateDirectory"]
    assert parser["Service"]["User"] == service["User"]
    assert (PACKAGING / "systemd" / "tpc-broker-scrub.timer").exists()


def test_systemd_waits_as_long_as_a_drain_takes(service: configparser.SectionProxy) -> None:
    drain_ms = limits.DRAIN_DEADLINE_MS + limits.DRAIN_HURRIED_MS + 10_000
    assert int(service["TimeoutStopSec"]) * 1000 > drain_ms
    assert service["KillMode"] == "mixed"  # SIGTERM to the supervisor alone
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["RestartPreventExitStatus"] == str(EXIT_CANNOT_RUN)


def test_a_reload_is_what_the_supervisor_takes_for_one(service: configparser.SectionProxy) -> None:
    assert service["ExecReload"] == "/bin/kill -USR2 $MAINPID"  # `tests/process/test_reload.py` sends that
    assert int(service["FileDescriptorStoreMax"]) > 0  # sockets stay while one supervisor takes another one's place


def test_a_process_that_goes_for_want_of_memory_takes_no_other_with_it(service: configparser.SectionProxy) -> None:
    assert service["OOMPolicy"] == "continue"  # cleaners offer themselves; systemd would stop the whole service


def test_the_drop_in_adds_to_the_unit_what_it_says(tmp_path: Path, service: configparser.SectionProxy) -> None:
    drop_in = (PACKAGING / "systemd" / "locked-memory-and-cpus.conf").read_text()
    parser = LastWins(strict=False)
    parser.read_string(drop_in)
    assert parser.sections() == ["Service"]
    assert dict(parser["Service"]).keys() == {"LimitMEMLOCK", "CPUAffinity", "NUMAPolicy", "NUMAMask"}
    assert parser["Service"]["LimitMEMLOCK"] == "infinity"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd reads its units itself where it is installed")
    unit = (PACKAGING / "systemd" / "tpc-broker.service").read_text().replace(service["ExecStart"], "/bin/true")
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    (tmp_path / "tpc-broker.service.d").mkdir()
    (tmp_path / "tpc-broker.service").write_text(unit)
    (tmp_path / "tpc-broker.service.d" / "locked-memory-and-cpus.conf").write_text(drop_in)
    done = subprocess.run(
        ["systemd-analyze", "--man=no", "verify", str(tmp_path / "tpc-broker.service")], env=environment,
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "tpc-broker" in line and "Documentation" not in line]
    assert ours == []


def test_the_unit_leaves_io_uring() -> None:
    text = (PACKAGING / "systemd" / "tpc-broker.service").read_text()
    filters = " ".join(re.findall(r"^SystemCallFilter=(?!~)(.*)$", text, re.MULTILINE)).split()
    assert set(filters) >= IO_URING | {"cachestat"}
    assert not re.search(r"^SystemCallFilter=~", text, re.MULTILINE)
    assert "LimitMEMLOCK=infinity" in text


def test_the_example_of_settings_has_known_names_and_their_defaults() -> None:
    text = (PACKAGING / "systemd" / "broker.properties").read_text()
    examples = re.sub(r"^#(?=[a-z.]+=)", "", text, flags=re.MULTILINE)
    assert load_settings(text).settings == load_settings(examples).settings
    assert len(load_settings(examples).given) >= 5
    assert plan_listeners((), (), listener_settings(examples, ()), 2) == plan_listeners((), (), {}, 2)
    longer = "\n".join(re.findall(r"^#   (.*=.*)$", text, re.MULTILINE))
    assert [each.name for each in plan_listeners((), (), listener_settings(longer, ()), 2)] == ["INSIDE", "OUTSIDE"]


def test_the_seccomp_profile_leaves_what_a_broker_needs() -> None:
    profile = json.loads((PACKAGING / "container" / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    denied = {name for rule in profile["syscalls"] for name in rule["names"] if "args" not in rule}
    needed = IO_URING | {"sched_setaffinity", "prctl", "pidfd_open", "eventfd2", "flock", "fallocate", "syncfs"}
    assert denied & needed == set()
    assert denied >= {"mount", "bpf", "ptrace", "init_module", "kexec_load", "unshare", "setns"}
    assert all(rule["action"] == "SCMP_ACT_ERRNO" for rule in profile["syscalls"])


def test_the_container_runs_commands_that_are_there() -> None:
    text = (PACKAGING / "container" / "Containerfile").read_text()
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0]) == ["tpc-broker"]
    command = json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[0])
    main.main.commands[command[0]].make_context(command[0], command[1:])
    script = (PACKAGING / "container" / "run.sh").read_text()
    words = shlex.split(re.findall(r"tpc-broker (serve .*)$", script, re.MULTILINE)[0].replace('"$@"', ""))
    words = [word.replace("$host", "broker.example").replace("$cores", "2") for word in words]
    context = main.main.commands["serve"].make_context("serve", words[1:])
    assert context.params["advertise"] == ("broker.example:9092",)
    assert context.params["cores"] == 2


@pytest.mark.parametrize(("cores", "ports"), [("1", "9092:9092"), ("3", "9092-9094:9092-9094")])
def test_the_container_publishes_a_port_for_each_core(cores: str, ports: str) -> None:
    """One core is one port: Podman refuses a range of one."""
    command = [PACKAGING / "container" / "run.sh", "broker.example", cores, "--log-level", "DEBUG"]
    said = subprocess.run(command, env={**os.environ, "ENGINE": "echo"}, capture_output=True, text=True, check=True)
    words = shlex.split(said.stdout)
    assert words[words.index("--publish") + 1] == ports
    profile = words[words.index("--security-opt") + 1].removeprefix("seccomp=")
    assert Path(profile) == PACKAGING / "container" / "seccomp.json"
    assert words[words.index("--cores") + 1 :] == [cores, "--log-level", "DEBUG"]
