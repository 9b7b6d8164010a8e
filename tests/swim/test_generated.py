"""The committed `swim_pb2.py` says what `swim.proto` says; any version of the compiler may judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tpc_broker.swim import swim_pb2

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "tpc_broker" / "swim" / "swim.proto"


def compiled(source: Path, root: Path, output: Path) -> descriptor_pb2.FileDescriptorProto:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={output}", str(source)]
    subprocess.run(command, check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file[0]


def committed() -> descriptor_pb2.FileDescriptorProto:
    described = descriptor_pb2.FileDescriptorProto()
    swim_pb2.DESCRIPTOR.CopyToProto(described)
    return described


@pytest.mark.parametrize("is_changed", [False, True])
def test_the_generated_code_is_that_of_the_source(tmp_path, is_changed):
    copy = tmp_path / SOURCE.relative_to(ROOT)
    copy.parent.mkdir(parents=True)
    text = SOURCE.read_text()
    copy.write_text(text.replace("uint32 cores = 4", "uint64 cores = 4") if is_changed else text)
    found = compiled(copy, tmp_path, tmp_path / "set")
    for described in (found, expected := committed()):
        for message in described.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert (found == expected) is not is_changed
