"""The MTP draft head: learns to say what the policy will say next but one, and drafts for the engine.

`companion.HeadCompanion` is what rides the policy's passes; `draft.DraftHead` learns and compares in them; `head` is
the network; `events` and `loss` say what it learns from; `weights` says where its numbers come from and go to. Nothing
here reaches back into the policy's graph: hidden states, embeddings and the LM head are used without gradient.
"""
