"""The compiled half of the package; everything else is in pyproject.toml."""

import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildBoth(build_ext):
    """The C++ extension, and the CUDA library where there is an nvcc. It speaks C: no header of torch to compile."""

    def run(self):
        super().run()
        nvcc = shutil.which("nvcc")
        if nvcc is None:
            self.warn("no nvcc on PATH: built for the CPU alone")
            return
        library = Path(self.build_lib, "blocked", "libtranspose.so")
        command = [nvcc, "-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run([*command, "src/blocked/transpose.cu", "-o", str(library)], check=True)


setup(
    cmdclass={"build_ext": BuildBoth},
    ext_modules=[
        Extension(
            "blocked._transpose",
            sources=["src/blocked/_transpose.cpp"],
            extra_compile_args=["-O3", "-std=c++17"],
        )
    ],
)
