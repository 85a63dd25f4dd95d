"""Writes what a check found as a page of Great Expectations' Data Docs."""

from pathlib import Path

from dcp.errors import SetupError
from dcp.lake.quality.quality_engine import data_docs_page
from dcp.lake.quality.quality_report import QualityReport


def write_data_docs(report: QualityReport, folder: Path) -> Path:
    """Write a check's page, ``<table>-<version>.html``, and return its path.

    Raises:
        SetupError: it cannot be written.
    """
    page = folder / f"{report.table}-{report.version}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(data_docs_page(report.validation), "utf-8")
    except OSError as error:
        raise SetupError(
            f"--data-docs: cannot write {page}: {error.strerror}; name a folder that can be written"
        ) from None
    return page
