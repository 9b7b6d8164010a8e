"""Two cffi extensions; everything else is in pyproject.toml."""

from setuptools import setup

setup(cffi_modules=["native/build_bytes.py:ffibuilder", "native/build_ring.py:ffibuilder"])
