"""Builds what is in C, or leaves it out where there is no compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"fsdpdoctor.{name}",
            sources=[f"fsdpdoctor/{name}.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
        for name in ("_scan", "_tape")
    ]
)
