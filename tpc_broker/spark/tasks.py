"""Connections inside Spark's Python processes.

Readers and writers are pickled to tasks, so they carry settings and no connections. A worker process that Spark
uses again finds the connections of earlier tasks here; one that is forked or new makes its own.
"""

import os
import threading

from tpc_broker.client.cluster import Cluster, ClusterSettings

_clusters: dict[tuple[ClusterSettings, int, int], Cluster] = {}


def cluster_of(settings: ClusterSettings) -> Cluster:
    """The cluster of this process and thread."""
    key = (settings, os.getpid(), threading.get_ident())
    if key not in _clusters:
        _clusters[key] = Cluster(settings)
    return _clusters[key]
