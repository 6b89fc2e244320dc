"""The 17 labels: their order, groups, spelling variants and prompts.

The order (anatomy, then findings) is the column order of every `[.., 17]` array in this package.
"""

REGIONS = ("mouth", "esophagus", "stomach", "small intestine", "colon")  # in the capsule's order
LANDMARKS = ("z-line", "pylorus", "ileocecal valve")  # at the changes between regions
ANATOMY = REGIONS + LANDMARKS
FINDINGS = (
    "active bleeding",
    "angiectasia",
    "blood",
    "erosion",
    "erythema",
    "hematin",
    "lymphangioectasis",  # so spelled by the data set and by the challenge
    "polyp",
    "ulcer",
)
LABELS = ANATOMY + FINDINGS
N_LABELS = len(LABELS)
COLUMN = {name: i for i, name in enumerate(LABELS)}

PROMPT = "a video capsule endoscopy image showing {label}"


def normalise(name: str) -> str:
    """Lower case, one space between words: `Small_Intestine ` and `small intestine` are the same column.

    The hyphen of `z-line` is kept; `z_line`, `z line` and `zline` are read as it.
    """
    words = " ".join(name.replace("_", " ").lower().split())
    return "z-line" if words in ("z line", "zline") else words


def prompts(template: str = PROMPT) -> list[str]:
    """One sentence per label for the contrastive path, in the order of `LABELS`."""
    return [template.format(label=name) for name in LABELS]
