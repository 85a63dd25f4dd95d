"""``dcplake run`` as a file that schedulers and ``spark-submit`` can name."""

from dcp.cli.main import run_job

if __name__ == "__main__":
    run_job("run")
