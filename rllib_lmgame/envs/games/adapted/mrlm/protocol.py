"""The messages and methods of MRLM's gRPC service.

Source: https://github.com/open-tinker/MRLM, ``src/mrlm/protocols/mrlm.proto``.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

SERVICE = "mrlm.EnvironmentService"
_FORMS = {
    "MessageProto": "role:text content:text metadata:map.text",
    "ObservationProto": "messages:list.MessageProto state:map.text done:flag info:map.text",
    "RewardProto": "value:number components:map.number info:map.text",
    "ResetRequest": "environment_id:text config:map.text",
    "ResetResponse": "observation:one.ObservationProto session_id:text status:text",
    "StepRequest": "session_id:text action:one.MessageProto",
    "StepResponse": "observation:one.ObservationProto reward:one.RewardProto status:text",
    "BatchStepRequest": "requests:list.StepRequest",
    "BatchStepResponse": "responses:list.StepResponse",
    "HealthCheckRequest": "service:text",
    "HealthCheckResponse": "status:text info:map.text timestamp:long",
    "EnvironmentInfo": "environment_id:text environment_type:text mode:text metadata:map.text",
    "ListEnvironmentsRequest": "environment_type:text",
    "ListEnvironmentsResponse": "environments:list.EnvironmentInfo",
}
"""The messages: fields in the order of their numbers, which begin at 1."""

METHODS = {
    "Reset": ("ResetRequest", "ResetResponse"),
    "Step": ("StepRequest", "StepResponse"),
    "BatchStep": ("BatchStepRequest", "BatchStepResponse"),
    "StreamStep": ("StepRequest", "StepResponse"),
    "ListEnvironments": ("ListEnvironmentsRequest", "ListEnvironmentsResponse"),
    "HealthCheck": ("HealthCheckRequest", "HealthCheckResponse"),
}

_making = threading.Lock()


def messages() -> dict[str, Any]:
    """The classes of the messages, by name: the same ones for all threads."""
    with _making:
        return _messages()


@cache
def _messages() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    of = descriptor_pb2.FieldDescriptorProto
    kinds = {"text": of.TYPE_STRING, "flag": of.TYPE_BOOL, "number": of.TYPE_DOUBLE, "long": of.TYPE_INT64}
    file = descriptor_pb2.FileDescriptorProto(name="mrlm.proto", package="mrlm", syntax="proto3")
    for name, fields in _FORMS.items():
        message = file.message_type.add(name=name)
        for number, (key, kind) in enumerate((each.split(":") for each in fields.split()), 1):
            shape, _, inner = kind.partition(".")
            many = of.LABEL_REPEATED if shape in ("list", "map") else of.LABEL_OPTIONAL
            made = message.field.add(name=key, number=number, label=many)
            if shape in kinds:
                made.type = kinds[shape]
                continue
            made.type = of.TYPE_MESSAGE
            made.type_name = f".mrlm.{inner}"
            if shape == "map":
                entry = message.nested_type.add(name=f"{key.title()}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=of.LABEL_OPTIONAL, type=of.TYPE_STRING)
                entry.field.add(name="value", number=2, label=of.LABEL_OPTIONAL, type=kinds[inner])
                made.type_name = f".mrlm.{name}.{entry.name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mrlm.{name}")) for name in _FORMS}


def writable(text: str) -> str:
    """Protocol buffers hold no lone surrogates."""
    return text.encode(errors="replace").decode()
