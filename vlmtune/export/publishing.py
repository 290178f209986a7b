"""Uploads an export to the Hugging Face hub.

In: the folder of an export and the id of a repository. Out: the commit.
Never: a file that is not of the export, nor a public repository unless it is asked for.
"""

from pathlib import Path

from vlmtune.backbones.hub_connection import HUB_ID
from vlmtune.errors import UserError, one_line
from vlmtune.model.layout import FILES


def check_repository(repository: str) -> None:
    """Raises `UserError` if `repository` is not an id of the form owner/name."""
    if not HUB_ID.fullmatch(repository):
        raise UserError(
            f"expected a repository owner/name to push to, got {repository!r}: add the owner"
        )


def push(folder: Path, repository: str, public: bool = False) -> str:
    """Uploads the files of an export as one commit and returns the commit's id.

    A new repository is private unless `public`; an existing one keeps its visibility. The token is
    the one that `hf auth login` or the variable HF_TOKEN gives.

    Raises:
        UserError: The hub refuses, or is out of reach.
    """
    from huggingface_hub import HfApi  # an export that stays here does not need it

    check_repository(repository)
    api = HfApi()
    try:
        # A repository that exists keeps its visibility.
        api.create_repo(repository, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            # Whatever else lies in the folder stays here.
            allow_patterns=list(FILES),
            commit_message="Export of vlmtune",
        )
    except Exception as error:  # network, permission, name
        raise UserError(
            f"expected to push {folder} to {repository}, got {one_line(error)}: log in with "
            "`hf auth login`, and check the name and the network"
        ) from error
    return str(commit.oid)
