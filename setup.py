"""Builds the C scanner, or leaves it out where there is no compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "fsdpdoctor._scan",
            sources=["fsdpdoctor/_scan.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
