"""Where a replay takes part in verl 0.5 to 0.9, read from the sources of the tags.

0.6 and later ask their engine through a client in the agent loop workers, 0.5 and 0.6 also through
vLLM inside a worker (``rollout.mode=sync``).
"""

from __future__ import annotations

from align.frameworks.verl_hooks import verl_point

_RAY_TRAINER = "verl.trainer.ppo.ray_trainer"
_V1 = "verl.trainer.ppo.v1.trainer_base"
_LOOP = "verl.experimental.agent_loop.agent_loop"
_SERVER = "verl.workers.rollout.llm_server"


HOOKS = (
    verl_point(_V1, "PPOTrainer.fit", "verl_begin:fit", (0, 9), "checks before step 1"),
    verl_point(_V1, "create_rl_sampler", "verl_begin:sampler", (0, 9), "row order"),
    verl_point(
        _V1, "PPOTrainer._balance_batch", "verl_trainer:balanced_queued", (0, 9), "order in a step"
    ),
    verl_point(
        _V1, "PPOTrainer._compute_metrics", "verl_trainer:consumed_queued", (0, 9), "what was used"
    ),
    verl_point(
        "verl.trainer.ppo.v1.agent_loop_tq",
        "AgentLoopManagerTQ.generate_sequences",
        "verl_trainer:dispatch_queued",
        (0, 9),
        "a group for each prompt",
    ),
    verl_point(_RAY_TRAINER, "RayPPOTrainer.fit", "verl_begin:fit", (0, 5), "checks before step 1"),
    verl_point(
        _RAY_TRAINER, "RayPPOTrainer._create_dataloader", "verl_begin:loader", (0, 5), "row order"
    ),
    verl_point(
        _RAY_TRAINER,
        "RayPPOTrainer._balance_batch",
        "verl_trainer:balanced_padded",
        (0, 5),
        "order in a step",
    ),
    verl_point(
        _RAY_TRAINER,
        "compute_data_metrics",
        "verl_trainer:consumed_padded",
        (0, 5),
        "what was used",
    ),
    verl_point(
        _LOOP,
        "AgentLoopManager.generate_sequences",
        "verl_trainer:dispatch_padded",
        (0, 6),
        "a group for each prompt, a number for each row",
    ),
    verl_point(
        _LOOP,
        "AgentLoopWorkerBase._run_agent_loop|AgentLoopWorker._run_agent_loop",
        "verl_worker:agent_loop",
        (0, 6),
        "which response a loop gets",
    ),
    verl_point(
        _LOOP,
        "AsyncLLMServerManager.generate",
        "verl_worker:generate",
        (0, 6),
        "the response",
        before=(0, 8),
    ),
    verl_point(_SERVER, "LLMServerClient.generate", "verl_worker:generate", (0, 8), "the response"),
    verl_point(
        _LOOP,
        "AgentLoopWorkerBase._compute_score|AgentLoopWorker._compute_score",
        "verl_worker:compute_score",
        (0, 7),
        "the reward",
    ),
    verl_point(
        "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd",
        "vLLMRollout.generate_sequences",
        "verl_engine:generate_sequences",
        (0, 5),
        "responses",
        before=(0, 7),
    ),
)
