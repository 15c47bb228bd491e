"""The reference page of job files, for docs/generate.py."""

from __future__ import annotations

import json

from generate_text import table

USES = {
    "honoured": "it does what it says",
    "metadata": "it is kept with the session and shown, and changes nothing; where it would change "
    "a run on Azure, `submit` says so",
    "refused": "the file is refused with a sentence that says what to do instead",
}


def job_files_page() -> str:
    from singularity_scheduler.jobs import Use, rows, schema
    from singularity_scheduler.jobs.expressions import MAX_TEXT
    from singularity_scheduler.jobs.reading import MAX_BYTES, MAX_DEPTH, MAX_VALUES
    from singularity_scheduler.jobs.sweep_files import KEYS

    listed: list[tuple[object, ...]] = [
        (
            f"`{'.'.join(row.path)}`",
            " ".join(row.jobs) if len(row.jobs) < 2 else "both",
            row.use.value,
            row.meaning,
            f"`{json.dumps(row.example)}`",
        )
        for row in rows()
    ]
    sweep_keys: list[tuple[object, ...]] = [
        (
            f"`{'.'.join(key.path)}`" + (" (needed)" if key.needed else ""),
            f"taken as `{'.'.join(key.becomes)}`" if key.becomes else f"refused: {key.refused}",
        )
        for key in KEYS
    ]
    uses: list[tuple[object, ...]] = [(use.value, USES[use.value]) for use in Use]
    return "\n".join(
        [
            "# Job files\n",
            "What `jupyter singularity submit JOB.yml` takes: an Azure ML command job, a sweep job "
            "(see [below](#sweep-jobs)), or a notebook (`type: notebook`) in the same style. How "
            "to use it: [Run a notebook as a batch run](../how-to/batch.md#job-files). The table "
            f"is the JSON Schema `{schema()['$id']}` that files are checked with: "
            "[job.v1.schema.json](job.v1.schema.json).\n",
            table(("a key that is", "means"), uses),
            "A key that is not in the table is an error with the nearest one that is. `NAME` is "
            "any name.\n",
            table(("key", "job", "is", "meaning", "example"), listed),
            "The block `resources.properties.singularity` may be called `AISuperComputer`, and "
            "its keys may be written as on the wire (`ScalePolicy`, `slaTier`). Tiers and "
            "priorities may be capitalised.\n",
            "## Sweep jobs\n",
            "Azure ML's sweep jobs (`type: sweep`) are taken as they are when what they ask for is "
            "the same here: all combinations (`sampling_algorithm: grid`) of listed values "
            "(`type: choice`). Everything else is refused with its line: values drawn at random, "
            "other samplings, early termination. The table says which key of a "
            "command job each of theirs is; a key that is not in it is an error with the nearest "
            "one that is.\n",
            table(("key of a sweep job", "here"), sweep_keys),
            "## Expressions\n",
            "`${{inputs.NAME}}` and `${{outputs.NAME}}` may stand in `command`, `code`, "
            "`notebook`, `output`, `parameters`, `environment_variables` and in other inputs and "
            "outputs. An expression that is the whole value keeps its type. Circles are refused, "
            "and so is `${{parent...}}`: a file describes one job, no pipeline. In a sweep "
            "`${{search_space.NAME}}` may stand in `command` and `parameters`. `$[[ ]]`, which "
            "leaves out optional parts of a pipeline's command, is refused.\n",
            "In a command the value in quotes (`\"${{inputs.text}}\"`, also `'...'`, `$'...'` and "
            "here-documents) is that text, character by character: nothing in it ends the quotes "
            "or is expanded. Outside of quotes a path (an input with `path`, an output) is one "
            "word, whatever is in it; any other value goes in as it is, so `--lr 0.1 --epochs 3` "
            "becomes four words, and one that has a quote or the like without its end is "
            "refused.\n",
            "## What is read\n",
            "YAML 1.2: `1e-3` is a number, `on` and `2026-01-02` are texts. At most "
            f"{MAX_BYTES >> 10} KiB, {MAX_VALUES} values (aliases filled in) and {MAX_DEPTH} "
            f"levels; a text has at most {MAX_TEXT >> 10} KiB after expressions are filled in. "
            "No tags, no tabs as indentation, no key twice, one document.\n",
        ]
    )


def job_schema() -> str:
    """The published schema, as it lies in the package."""
    from singularity_scheduler.jobs.schema import SCHEMA_FILE

    return SCHEMA_FILE.read_text(encoding="utf-8")
