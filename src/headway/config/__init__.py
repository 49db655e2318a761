"""Options: frozen dataclasses, one per concern. Imports nothing of Headway."""

from headway.config.engine import EngineOptions
from headway.config.options import Checked, ConfigError, option
from headway.config.sampling import SamplingParams
from headway.config.scheduler import CacheConfig, SchedulerConfig
from headway.config.server import ServerOptions
from headway.config.structured import Structured

__all__ = [
    "CacheConfig",
    "Checked",
    "ConfigError",
    "EngineOptions",
    "SamplingParams",
    "SchedulerConfig",
    "ServerOptions",
    "Structured",
    "option",
]
