"""Hooks the process that imports it: for verl's VERL_USE_EXTERNAL_MODULES, where PYTHONPATH is not
handed on."""

from dumps.inject.install import install

install()
