"""The run folder."""

import json

import pytest
import torch

from thinwire.errors import LabError
from thinwire.lab.folder import RunFolder, read_metrics


def test_an_earlier_run_is_replaced_only_on_request(tmp_path):
    folder = RunFolder.create(tmp_path / "deep" / "run")
    folder.write_json("config.json", {"lr": 0.1})
    folder.save_gradients(5, {"w": torch.ones(2)})
    (folder.path / "notes.txt").write_text("mine")
    with pytest.raises(LabError, match="holds an earlier run"):
        RunFolder.create(folder.path)
    RunFolder.create(folder.path, overwrite=True)
    assert [file.name for file in folder.path.iterdir() if file.is_file()] == ["notes.txt"]
    assert folder.gradients() == []


def test_a_place_where_no_folder_can_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot write to"):
        RunFolder.create(tmp_path / "file" / "run")


def test_metrics_are_valid_json_even_when_training_diverges(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.append({"loss": float("nan"), "parts": [float("inf"), 1.0]})
    folder.append({"loss": 0.5})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text.splitlines()[0], parse_constant=pytest.fail) == {"loss": None, "parts": [None, 1.0]}
    assert read_metrics(tmp_path / "metrics.jsonl")[1] == {"loss": 0.5}


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path)
    folder.save("checkpoint.pt", {"epoch": 1})

    def write_half(value, path):
        path.write_bytes(b"PK")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", write_half)
        with pytest.raises(OSError, match="disk full"):
            folder.save("checkpoint.pt", {"epoch": 2})
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True) == {"epoch": 1}
