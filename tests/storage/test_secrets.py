"""What a run records holds no credential, whatever argument of a logger it came by."""

import inspect
import json

import pytest
from pytorch_lightning import loggers

from vlmtune.storage.secrets import without_secrets

SECRET = "hunter2"
URL = f"https://me:{SECRET}@host/a?sig={SECRET}"
# Names of arguments of loggers, and of what their `config`, `settings` and keywords hold.
NAMES = ("api_key", "apiKey", "key", "token", "WANDB_API_KEY", "db_password", "secretAccessKey")
NAMES += ("X-Auth-Token", "credentials", "auth", "smtp_pass", "accesskey", "SAS")


@pytest.mark.parametrize("logger", [name for name in loggers.__all__ if name != "Logger"])
def test_no_argument_of_a_logger_leaves_a_secret(logger):
    parameters = inspect.signature(getattr(loggers, logger)).parameters
    arguments = dict.fromkeys(parameters, URL)
    nested = [{name: SECRET, "deep": [URL, {name: [SECRET]}]} for name in NAMES]
    arguments |= {"config": nested, "kwargs": {**dict.fromkeys(NAMES, SECRET), "note": URL}}
    spec = {"class_path": f"lightning.pytorch.loggers.{logger}", "init_args": arguments}
    recorded = without_secrets({"trainer": {"logger": [spec]}})
    assert SECRET not in json.dumps(recorded)
    (kept,) = recorded["trainer"]["logger"]
    assert kept["init_args"].keys() == arguments.keys()
    assert kept["class_path"] == spec["class_path"]


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("mysql+pymysql://me:hunter2@db:3306/runs", "mysql+pymysql://db:3306/runs"),
        ("https://hunter2@host", "https://host"),
        ("https://me:a/hunter2@host", "https://"),  # a slash in it: no part of it is known
        ("https://me:hunter2 'x'@host/a", "https://host/a"),
        ("https://host/a;sig=hunter2", "https://host/a"),
        ("simplecache::https://me:hunter2@host/a", "simplecache::https://host/a"),
        ("see https://me:hunter2@host/a too", "see https://host/a too"),
    ],
)
def test_urls_lose_what_is_secret(url, kept):
    assert without_secrets([url]) == [kept]


def test_what_is_no_secret_stays():
    values = {
        "normalize_tokens": True,
        "tokens": 77,
        "tokenizer": "words",
        "keywords": ["a", "b"],
        "monkey": "https://host:8080/a",
        "path": "https://reader:$PASSWORD@host:$PORT/shards;$SIGNATURE?${QUERY}",
        "shards": ("hf://datasets/a/b@main/c", "s3://bucket/set"),
        "api_key": None,
        "key_benchmark": {"class_path": "mine.Benchmark", "init_args": {}},
    }
    assert without_secrets(values) == values
