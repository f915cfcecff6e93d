"""What each recipe does to training, on a small byte-level transformer, or on a model of yours.

    python -m quarterturn.study --out study --seeds 0,1     # all arms, on the GPU if there is one
    python -m quarterturn.study --out study --arms bf16,amd_det_h16,mine.json
    python -m quarterturn.study --out study --model my_package:make_model --data corpus.txt
    python -m quarterturn.study --out study --report        # the table and page again

Every arm starts from the same weights and sees the same batches as the others of its seed; its
products run in this library's kernels, not in fake quantisation. `--out` gets runs/ARM-SEED.jsonl
(a line a step), checkpoints, report.json and report.html. Stopped runs go on where they were.
"""
