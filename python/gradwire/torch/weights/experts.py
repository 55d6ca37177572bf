"""Finds the experts of a mixture that fine-tuning did not use much."""

import torch


def expert_change(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return how much fine-tuning raised the norm of each expert's row of the router.

    Experts with the lowest scores matter least for the fine-tuned task: prune these.

    Parameters
    ----------
    before, after : torch.Tensor
        The weight of a router before and after, of shape (experts, width), of any floating-point
        dtype.

    Returns
    -------
    torch.Tensor
        float32, or float64 of float64, of shape (experts,): the Euclidean norm of a row after,
        less that before; negative where it fell.

    Raises
    ------
    TypeError
        A router is not a tensor of floats.
    ValueError
        The shapes differ, or are not of two dimensions.

    Examples
    --------
    Keep three quarters of the experts, and the rows of the router that choose them:

    >>> before = router.weight.detach().clone()
    >>> train(model)
    >>> scores = expert_change(before, router.weight)
    >>> kept = scores.topk(len(scores) * 3 // 4).indices.sort().values
    >>> router.weight = torch.nn.Parameter(router.weight.detach()[kept])
    >>> experts = torch.nn.ModuleList(experts[i] for i in kept)

    References
    ----------
    Chowdhury, Wang, El Maghraoui, Wang, Chen, Carothers, "A Provably Effective Method for Pruning
    Experts in Fine-tuned Sparse Mixture-of-Experts", ICML 2024. The signed change is used, as in
    their code.
    """
    norms = []
    for name, router in (("before", before), ("after", after)):
        if not isinstance(router, torch.Tensor) or not router.is_floating_point():
            found = getattr(router, "dtype", type(router).__name__)
            raise TypeError(f"{name} must be a tensor of floats, got {found}")
        if router.dim() != 2:
            raise ValueError(f"{name} must be of shape (experts, width), got {tuple(router.shape)}")
        wide = router.detach().to(torch.float64 if router.dtype is torch.float64 else torch.float32)
        norms.append(torch.linalg.vector_norm(wide, dim=1))
    if before.shape != after.shape:
        shapes = f"{tuple(before.shape)} and {tuple(after.shape)}"
        raise ValueError(f"before and after must have the same shape, got {shapes}")
    change: torch.Tensor = norms[1] - norms[0]
    return change
