"""Workers that fail."""

import pytest

from thinwire.lab.config import RunConfig
from thinwire.lab.folder import RunFolder
from thinwire.lab.launch import Job, WorkerFailure, launch

CONFIG = RunConfig(data="digits", model="cnn", epochs=2, batch_size=64, min_values=100)


def test_a_worker_that_raises_is_named_with_its_own_cause_and_leaves_its_traceback(tmp_path):
    folder = RunFolder.create(tmp_path)
    (tmp_path / "checkpoint.pt.partial").mkdir()  # rank 0 will fail to write there; rank 1 because rank 0 is gone
    with pytest.raises(WorkerFailure, match=r"^worker 0 failed: .*Is a directory"):
        launch([Job(config=CONFIG, folder=str(folder.path))], lambda event: None)
    assert "Traceback" in (tmp_path / "error.txt").read_text()
    assert (tmp_path / "metrics.jsonl").is_file()
    assert not (tmp_path / "summary.json").exists()
