"""Atlas's rules, and the names for engineers who bring their own tools (DESIGN section 9)."""

from core.agent import Agent
from core.conversation import Message, Model, ModelReply, ToolCall, ToolSpec
from core.errors import ModelRefused, ModelUnavailable, ToolFailed
from core.tools import (
    Approval,
    DidNotHappen,
    Happened,
    Limits,
    Preview,
    Refused,
    Scope,
    ScopeResolver,
    Tool,
    ToolContext,
    Unknown,
    User,
    UserGroup,
)

__all__ = [
    "Agent",
    "Approval",
    "DidNotHappen",
    "Happened",
    "Limits",
    "Message",
    "Model",
    "ModelRefused",
    "ModelReply",
    "ModelUnavailable",
    "Preview",
    "Refused",
    "Scope",
    "ScopeResolver",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolSpec",
    "Unknown",
    "User",
    "UserGroup",
]
