"""Who a data directory is in its cluster: ``cluster/node.json``, replaced whole and durably.

`incarnation` is drawn when the directory is first used: a node that comes back with an empty disk has another one, and
what the earlier one had promised is not its own. `boots` rises with every start of core 0; it is the boot id of its
links, above those of all earlier starts (also of an earlier incarnation, as long as the clock is not set back between
the two).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpc_broker.cluster.founding import Founding
from tpc_broker.engine.durable_files import replace_file, sync_folder
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_MOVES, SPOKEN
from tpc_broker.log.files import journal_file_name
from tpc_broker.metadata.core_counts import counts_to_tell
from tpc_broker.model import CoreId, MetadataVersion
from tpc_broker.node.links.surroundings import SYSTEM, Surroundings
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.options import ClusterOptions

FOLDER = "cluster"
FILE = "node.json"
BOOT_SUFFIX = ".boot"
FORMAT = 1
INCARNATION_BITS = 62
BOOTS_BEGIN = 1 << 42
"""Above the clocks' milliseconds, by which boots were numbered before."""
BOOTS_OF_A_VERSION = 1 << 10
START_EMPTY = "start it with an empty --data, and it learns from them"


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """`founding` is None until the node is in a cluster; `has_replica`: it has, or is to have, a part of the metadata
    group, as one of its first voters or because a leader asked it to; `level`: the cluster's feature level, as far as
    the node has heard. `counts_to_tell`: numbers of cores that it was started with since the metadata heard of it last,
    each of which has handed over what more cores had (`metadata.core_counts`).
    """

    node: int
    incarnation: int
    boot: int
    cores: int
    founding: Founding | None = None
    has_replica: bool = False
    level: int = FIRST_OF_CLUSTERS
    counts_to_tell: tuple[int, ...] = ()

    @property
    def is_first_voter(self) -> bool:
        return self.founding is not None and (self.node, self.incarnation) in self.founding.voters

    def check(self, data: Path, node: int, cores: int) -> None:
        """StartError when the directory cannot be started so."""
        if self.founding is not None and not SPOKEN.has(self.level):
            raise StartError(
                f"{data} is of a cluster at feature level {self.level}, and this release speaks {SPOKEN}: start one "
                "that speaks it"
            )
        if self.node != node:
            raise StartError(f"{data} is node {self.node}'s data directory, not node {node}'s")
        if cores < self.cores and self.founding is not None and self.level < FIRST_WITH_MOVES:
            raise StartError(
                f"{data} ran in its cluster with {self.cores} cores; --cores {cores} is possible from "
                f"tpc.version={FIRST_WITH_MOVES} on, and the cluster is at {self.level} (kafka-features.sh upgrade)"
            )


class IdentityFile:
    """Reads and replaces it. Blocking: it is small, and read once a start."""

    def __init__(self, data: Path, surroundings: Surroundings = SYSTEM) -> None:
        self._surroundings = surroundings
        self.folder = data / FOLDER
        self._path = self.folder / FILE
        self.identity: NodeIdentity

    def open(self, node: int, cores: int) -> NodeIdentity:
        """A new life of this directory as that node. StartError when it is another's."""
        self.folder.mkdir(exist_ok=True)
        now = self._surroundings.clock.wall_ms()
        found = self.read()
        if found is None:
            identity = NodeIdentity(node, self._surroundings.chance.getrandbits(INCARNATION_BITS), now, cores)
        else:
            found.check(self.folder.parent, node, cores)
            identity = replace(found, boot=max(found.boot + 1, now), cores=cores)
        return self._write(identity)

    def read(self) -> NodeIdentity | None:
        """None where there is none. StartError when it is damaged."""
        try:
            fields = json.loads(self._path.read_bytes())
            return _from_fields(fields)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartError(f"{self._path} cannot be read: {error}; it says which node this directory is") from error

    def joined(self, founding: Founding) -> NodeIdentity:
        """The node is in this cluster from now on."""
        identity = replace(self.identity, founding=founding)
        if identity.is_first_voter:
            identity = replace(identity, has_replica=True)
        return self._write(identity)

    def gets_replica(self) -> NodeIdentity:
        return self._write(replace(self.identity, has_replica=True))

    def hands_over(self, cores: int) -> NodeIdentity:
        """Before what is on the disk goes to the cores that there are now: the metadata are to hear of it."""
        found = self.read()
        assert found is not None, self._path
        counts = counts_to_tell(found.counts_to_tell, found.cores, cores)
        return self._write(replace(found, counts_to_tell=counts))

    def counts_told(self) -> None:
        """The metadata have heard of them."""
        self._write(replace(self.identity, counts_to_tell=()))

    def is_at_level(self, level: int) -> None:
        """The cluster is, so that an earlier release that is started here says so before it reads anything else."""
        if self.identity.level != level:
            self._write(replace(self.identity, level=level))

    def _write(self, identity: NodeIdentity) -> NodeIdentity:
        """It is this from when it is durable. OSError: it is what it was, and the file may say either."""
        fields: dict[str, Any] = {
            "format": FORMAT,
            "node": identity.node,
            "incarnation": identity.incarnation,
            "boot": identity.boot,
            "cores": identity.cores,
            "founding": None if identity.founding is None else identity.founding.to_json(),
            "has_replica": identity.has_replica,
            "level": identity.level,
            "counts_to_tell": identity.counts_to_tell,
        }
        replace_file(self._path, json.dumps(fields, indent=1).encode())
        sync_folder(self.folder.parent)
        self.identity = identity
        return identity


def _from_fields(fields: dict[str, Any]) -> NodeIdentity:
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']}; this release knows {FORMAT}")
    founding = None if fields["founding"] is None else Founding.from_json(fields["founding"])
    node, incarnation, boot, cores = (int(fields[name]) for name in ("node", "incarnation", "boot", "cores"))
    level = int(fields.get("level", FIRST_OF_CLUSTERS))
    counts = tuple(int(each) for each in fields.get("counts_to_tell", ()))
    return NodeIdentity(node, incarnation, boot, cores, founding, bool(fields["has_replica"]), level, counts)


def _boot_path(data: Path, core: int) -> Path:
    """Where it is, a core has promised others what is in its journal."""
    return data / FOLDER / f"core{core}{BOOT_SUFFIX}"


def _ended_path(data: Path, core: int) -> Path:
    """In its place, when another core has taken over what this one has promised."""
    return data / FOLDER / f"core{core}.ended"


def core_ended(data: Path, core: int) -> None:
    """Other cores have what it had, durably; its journal may go. As often as it takes."""
    path = _boot_path(data, core)
    if path.exists():
        path.replace(_ended_path(data, core))
        sync_folder(path.parent)


def next_core_boot(data: Path, core: int, version: MetadataVersion) -> int:
    """A number above those of all earlier starts of a core, kept beside the node's identity.

    Also above those of a disk that the node had before: `version` is that of metadata in which this one is registered,
    and the one before began with earlier ones. A clock may be behind.
    """
    path = _boot_path(data, core)
    before = max(_boots(path), _boots(_ended_path(data, core)))
    boot = max(before + 1, BOOTS_BEGIN + version * BOOTS_OF_A_VERSION)
    replace_file(path, str(boot).encode())
    return boot


def _boots(path: Path) -> int:
    """0: there is no such file. StartError when it is damaged."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise StartError(f"{path} cannot be read: {error}; it counts the starts of a core") from error


def check_directory(data: Path, cluster: ClusterOptions | None, cores: int) -> None:
    """Before anything is started: a directory of a cluster's node is not started without the cluster, whose metadata it
    has, nor as another node. StartError.
    """
    found = IdentityFile(data).read()
    if found is None:
        return
    if cluster is not None:
        found.check(data, cluster.node_id, cores)
        _check_journals(data)
    elif found.founding is not None:
        raise StartError(
            f"{data} is node {found.node}'s of cluster {found.founding.cluster}: start it with --cluster, --seeds and "
            f"--node-id {found.node}"
        )


def _check_journals(data: Path) -> None:
    """A core that has had replicas has promised others what was in its journal. StartError where that is gone."""
    for boots in sorted((data / FOLDER).glob(f"core*{BOOT_SUFFIX}")):
        journal = data / "journals" / journal_file_name(CoreId(int(boots.name[4 : -len(BOOT_SUFFIX)])))
        if not journal.exists():
            raise StartError(f"{journal} is gone, and with it what this node has promised to others: {START_EMPTY}")


def refuse_of_cluster(data: Path, what: str) -> None:
    """StartError for what needs the metadata in the directory itself, where a cluster has them."""
    found = IdentityFile(data).read()
    if found is not None and found.founding is not None:
        raise StartError(
            f"{data} is node {found.node}'s of cluster {found.founding.cluster}, whose metadata its voters have: "
            f"{what} is for a broker without a cluster so far; nothing was changed"
        )


def is_in_cluster(data: Path) -> bool:
    """Whether the metadata are a cluster's, and not in the directory's own log."""
    found = IdentityFile(data).read()
    return found is not None and found.founding is not None
