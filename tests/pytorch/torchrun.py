"""torchrun's agent in a process that is forked from one which has torch already; its ranks are forked from the agent.

So a start, and each restart, costs a fraction of a second instead of seconds. Knows nothing of jobs.
"""

import os
from pathlib import Path
from typing import Any

from ranks import forking

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else gloo may meet addresses of the attempt before
}


def started(options: list[str], script: Path, arguments: list[str], environment: dict[str, str], log: Path) -> Any:
    """`torchrun --local-addr=127.0.0.1 OPTIONS SCRIPT ARGUMENTS`, begun: its process.

    Args:
        options: torchrun's own.
        script: what each rank runs.
        arguments: the script's.
        environment: added to ours, of which nothing of lbbsp's is passed on.
        log: where all of them write.
    """
    words = ["--local-addr=127.0.0.1", "--start-method=fork", *options, "--run-path", str(script), *arguments]
    process = forking().Process(target=_agent, args=(words, ENVIRONMENT | environment, str(log)))
    process.start()
    return process


def _agent(words: list[str], environment: dict[str, str], log: str) -> None:
    """A session of its own, as a machine's agent has."""
    os.setsid()
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for name in [name for name in os.environ if name.startswith("LBBSP_")]:
        del os.environ[name]
    os.environ.update(environment)
    from torch.distributed import run

    run.main(words)
