"""A plug-in of the test host alone: SGLang's CPU attention backend, and drafters that tests name by a launch variable."""

_kept = []


def register() -> None:
    from sglang.srt.runtime_context import override_platform

    # The backend's two kernels stand in `sgl_kernel`; without this the server falls back to one without verification.
    override = override_platform(has_amx=True)
    override.__enter__()
    _kept.append(override)


def forked(inner):
    import torch

    from specdec.drafter import Drafter, DrafterSpec
    from specdec.types import Draft

    class Forked(Drafter):
        """A tree out of the inner drafter's chain: a wrong sibling stands before each of its tokens."""

        spec = DrafterSpec(window=inner.spec.window, max_budget=None, trees=True)

        def attach(self, target, codec):
            self.vocab = target.spec.vocab_size
            inner.attach(target, codec)

        def open(self, slots, requests, scores):
            inner.open(slots, requests, scores)

        def propose(self, ctx):
            chain = inner.propose(ctx)
            tokens, parents = [chain.tokens[:, :1]], [chain.parents[:, :1]]
            before = torch.zeros_like(chain.tokens[:, 0])
            for node in range(1, chain.nodes):
                if len(tokens) + 2 > ctx.budget:
                    break
                there = chain.parents[:, node] >= 0
                decoy = (chain.tokens[:, node] + 7) % self.vocab
                parent = torch.where(there, before, -1)[:, None]
                tokens += [decoy[:, None], chain.tokens[:, node : node + 1]]
                parents += [parent, parent]
                before = torch.full_like(before, len(tokens) - 1)
            return Draft(torch.cat(tokens, 1), torch.cat(parents, 1))

        def commit(self, ctx, draft, verdict, scores):
            inner.commit(ctx, draft, verdict, scores)

        def close(self, slots):
            inner.close(slots)

    return Forked()


def tapped():
    from specdec.drafter import Drafter, DrafterSpec
    from specdec_drafters.ngram import Ngram

    class Tapped(Ngram):
        """Drafts as ngram does while it reads the states of two layers; raises where they are not what it asked for."""

        spec = DrafterSpec(window=Ngram.spec.window, max_budget=16, taps=(0, 2))

        def attach(self, target, codec):
            super().attach(target, codec)
            self.width = target.spec.hidden_size * 2

        def open(self, slots, requests, scores):
            assert scores.hidden.shape == (len(slots), 1, self.width), scores.hidden.shape
            assert scores.hidden.abs().sum() > 0
            super().open(slots, requests, scores)

        def commit(self, ctx, draft, verdict, scores):
            assert scores.hidden.shape == (*draft.tokens.shape, self.width), scores.hidden.shape
            super().commit(ctx, draft, verdict, scores)

    assert issubclass(Tapped, Drafter)
    return Tapped()
