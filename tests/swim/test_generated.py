"""Committed code of protobuf says what its `.proto` says; any version of the compiler may judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2

from tpc_broker.cluster import link_pb2
from tpc_broker.swim import swim_pb2

ROOT = Path(__file__).parent.parent.parent
SOURCES = [
    (ROOT / "tpc_broker" / "swim" / "swim.proto", swim_pb2, "uint32 cores = 4"),
    (ROOT / "tpc_broker" / "cluster" / "link.proto", link_pb2, "uint32 core = 5"),
]
"""With a field that is changed, to see that a change is seen."""


def compiled(source: Path, root: Path, output: Path) -> descriptor_pb2.FileDescriptorProto:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={output}", str(source)]
    subprocess.run(command, check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file[0]


def committed(module: ModuleType) -> descriptor_pb2.FileDescriptorProto:
    described = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(described)
    return described


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize(("source", "module", "field"), SOURCES)
def test_the_generated_code_is_that_of_the_source(tmp_path, source, module, field, is_changed):
    copy = tmp_path / source.relative_to(ROOT)
    copy.parent.mkdir(parents=True)
    text = source.read_text()
    copy.write_text(text.replace(field, field.replace("uint32", "uint64")) if is_changed else text)
    found = compiled(copy, tmp_path, tmp_path / "set")
    for described in (found, expected := committed(module)):
        for message in described.message_type:
            for one in message.field:
                one.ClearField("json_name")
    assert (found == expected) is not is_changed
