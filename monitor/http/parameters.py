"""Parameters of the query that several endpoints have."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

Limit = Annotated[int, Query(ge=1, le=1000, description="at most so many")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="so many are left out")]


class Onward(BaseModel):
    """Where to go on in what grows."""

    after: Annotated[str, Query(description="the cursor of the answer before")] = ""
    limit: Limit = 1000
    last: Annotated[
        int,
        Query(
            ge=0,
            le=1000,
            description="the last so many instead of the first; the cursor goes on from there",
        ),
    ] = 0
