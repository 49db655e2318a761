"""JSON schemas before they are compiled: which keywords are kept to, which are taken as annotations, and formats."""

from headway.config.schemas.rewrite import Annotation, prepare

__all__ = ["Annotation", "prepare"]
