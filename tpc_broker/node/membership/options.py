"""`--cluster` and what goes with it, checked before anything is started: one line for whatever is wrong."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.secret import ClusterSecret, SecretError
from tpc_broker.engine.tls import is_built
from tpc_broker.host_port import NO_HOST, PORT_MAX, is_loopback, may_name_a_host, read_port
from tpc_broker.limits import CLUSTER_SEEDS_MAX, SWIM_HOST_BYTES_MAX, SWIM_NAME_BYTES_MAX
from tpc_broker.model import NODE_ID_MAX
from tpc_broker.node.links.sealed_links import AUTO, OFF, REQUIRED
from tpc_broker.options import ClusterOptions, StartError

OTHERS_MAY_READ = 0o077
LINKS_OF_AUTHORIZER = (
    "authorizer.class.name: in a cluster nodes tell each other who asks for what, by links that are encrypted: give "
    "--cluster-secret FILE, let cluster.links.encryption be auto or required, and have OpenSSL where this is built"
)


def plan_cluster(
    arguments: dict[str, object], cores: int, encryption: str = AUTO, *, is_authorizing: bool = False
) -> ClusterOptions | None:
    """What the command line says of the cluster, and `cluster.links.encryption`; None without `--cluster`. StartError
    names what is wrong. `is_authorizing`: there is an authorizer, so no link may be plain: whoever sat there could ask
    in anybody's name.
    """
    given = arguments.get("cluster")
    if given is None:
        for name in ("node_id", "seeds", "rack", "cluster_secret"):
            if arguments.get(name) is not None:
                raise StartError(f"--{name.replace('_', '-')} goes with --cluster HOST:PORT")
        return None
    address = parse_address("--cluster", str(given))
    _check_own_address(address, cores)
    node_id = arguments.get("node_id")
    if not isinstance(node_id, int) or not 0 <= node_id <= NODE_ID_MAX:
        said = "" if node_id is None else f" {node_id}"
        raise StartError(
            f"--node-id{said}: --cluster needs a number from 0 to {NODE_ID_MAX}, another one for each node"
        )
    rack = str(arguments.get("rack") or "")
    if len(rack.encode()) > SWIM_NAME_BYTES_MAX:
        raise StartError(f"--rack: a name of {len(rack.encode())} bytes; at most {SWIM_NAME_BYTES_MAX} are allowed")
    seeds = _seeds(arguments.get("seeds"), address)
    path = _secret_path(arguments.get("cluster_secret"), address)
    if encryption == REQUIRED and not path:
        raise StartError("cluster.links.encryption=required: the key comes from --cluster-secret, which is not given")
    if is_authorizing:
        if not path or encryption == OFF or not is_built():
            raise StartError(LINKS_OF_AUTHORIZER)
        encryption = REQUIRED
    return ClusterOptions(node_id, address, seeds, rack, path, encryption, has_authorizer=is_authorizing)


def parse_address(option: str, text: str) -> SeedAddress:
    """`HOST:PORT`, with brackets around a host with colons."""
    host, _, port_text = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not may_name_a_host(bare):
        raise StartError(f"{option} {text}: {NO_HOST}")
    port = read_port(port_text)
    if not bare or port is None or (":" in bare and bare == host) or len(bare.encode()) > SWIM_HOST_BYTES_MAX:
        raise StartError(f"{option} {text}: expected HOST:PORT, with a port from 1 to {PORT_MAX}")
    return SeedAddress(bare, port)


def _check_own_address(address: SeedAddress, cores: int) -> None:
    if address.port + cores - 1 > PORT_MAX:
        raise StartError(f"--cluster {address}: core i is at PORT+i, and there are {cores} cores; choose a lower port")
    try:
        is_wildcard = ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        return
    if is_wildcard:
        raise StartError(
            f"--cluster {address}: other nodes reach this one there, so it must be an address of this host"
        )


def _seeds(given: object, own: SeedAddress) -> tuple[SeedAddress, ...]:
    if given is None:
        raise StartError("--cluster needs --seeds HOST:PORT,HOST:PORT,…: the cluster addresses of the founders")
    seeds = tuple(dict.fromkeys(parse_address("--seeds", each) for each in str(given).split(",")))
    if len(seeds) > CLUSTER_SEEDS_MAX:
        raise StartError(f"--seeds: {len(seeds)} addresses; at most {CLUSTER_SEEDS_MAX} are allowed")
    if seeds == (own,):
        raise StartError(
            "--seeds names this node alone: a cluster is founded by two nodes or more; name the others too"
        )
    return seeds


def _secret_path(given: object, address: SeedAddress) -> str:
    if given is None:
        if not _is_of_this_machine(address.host):
            raise StartError(
                f"--cluster {address}: without --cluster-secret FILE a cluster listens on loopback only, because "
                "whoever reaches the port could join; make one with: openssl rand -hex 32"
            )
        return ""
    path = Path(str(given)).expanduser().resolve()
    read_secret(str(path))
    return str(path)


def read_secret(path: str) -> ClusterSecret:
    """Of a file; the empty one without. StartError when it cannot be used."""
    if not path:
        return ClusterSecret(())
    try:
        with Path(path).open("rb") as file:
            mode = Path(path).stat().st_mode
            text = file.read(1 << 16)
    except OSError as error:
        raise StartError(f"--cluster-secret {path}: {error.strerror}") from error
    if mode & OTHERS_MAY_READ:
        raise StartError(f"--cluster-secret {path}: other users may read it; chmod 600 {path}")
    try:
        return ClusterSecret.from_text(text)
    except SecretError as error:
        raise StartError(f"--cluster-secret {path}: {error}") from error


def _is_of_this_machine(host: str) -> bool:
    """Whether all its addresses are loopback's; a resolver says which it has."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StartError(f"--cluster: {host}: {error.strerror or error}") from error
    return all(is_loopback(str(entry[4][0])) for entry in found)


def bind_cluster(address: SeedAddress, cores: int) -> list[tuple[socket.socket, ...]]:
    """The sockets of each core, bound by the supervisor so that they outlive it: for links, at core 0 for datagrams
    too.
    """
    bound = []
    for core in range(cores):
        own = SeedAddress(address.host, address.port + core)
        try:
            found = socket.getaddrinfo(own.host, own.port, type=socket.SOCK_STREAM)[0]
            links = socket.socket(found[0], socket.SOCK_STREAM)
            links.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            links.bind(found[4])
            links.listen(128)
            sockets = [links]
            if not core:
                sockets.append(socket.socket(found[0], socket.SOCK_DGRAM))
                sockets[-1].bind(found[4])
        except OSError as error:
            raise StartError(f"--cluster {address}: {own}: {error.strerror or error}") from error
        bound.append(tuple(sockets))
    return bound
