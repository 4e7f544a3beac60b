"""The compiled half of the package; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "blocked._transpose",
            sources=["src/blocked/_transpose.cpp"],
            extra_compile_args=["-O3", "-std=c++17"],
        )
    ]
)
