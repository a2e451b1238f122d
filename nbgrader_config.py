# Where nbgrader finds things. Stock commands work from the root of a clone:
#   nbgrader generate_assignment 01_attention
#   nbgrader autograde 01_attention && nbgrader generate_feedback 01_attention
import os
from pathlib import Path

from classroom.nbgrader import generate

c = get_config()

# A release that fails leaves the earlier one as it was, and exercises may come and go while a class
# is at work.
generate.switch_on()

# How `nbgrader autograde` grades, and formgrader's button for it. Open, as here: a notebook runs
# in one process with its checks, with your rights. Sealed: as `classroom grade` does, in a sandbox,
# and not at all where there is none; for good with `sealed = True`, for one command with
#   CLASSROOM_SEALED=1 nbgrader autograde 01_attention
sealed = os.environ.get("CLASSROOM_SEALED", "") not in ("", "0")
if sealed:
    try:
        from classroom.nbgrader.autograde import switch_on

        switch_on()
    except Exception as error:
        # nbgrader reports an error in this file and goes on without the file: it would grade open.
        raise SystemExit(f"sealed grading cannot be switched on: {error}") from error
else:
    c.Autograde.sanitize_preprocessors.prepend(["classroom.nbgrader.autograde.AddBack"])
    c.Autograde.autograde_preprocessors.prepend(["classroom.nbgrader.autograde.OpenChecks"])
    # Between LimitOutput and SaveAutoGrades.
    c.Autograde.autograde_preprocessors.insert(4, "classroom.nbgrader.autograde.OnlyCounted")
    c.Autograde.autograde_preprocessors.append("classroom.nbgrader.autograde.SayOpen")

c.CourseDirectory.course_id = "attention_from_the_ground_up"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"

# A release holds the notebook, its checks without their answers, and prepared results. The text
# that the notebook is made from, with the solutions in it, and the differently written solutions
# stay here, as do the whole checks, the named mistakes, and what the results were made from.
c.GenerateAssignment.preprocessors.append("classroom.author.handout.Handout")
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints",
    "__pycache__",
    "*.pyc",
    "handed_in",
    "made_from.json",
    *sorted({p.name for p in Path("solutions").glob("*/*.py")}),
]

# Exercises are graded by the kernel of this environment, whatever the submission asks for.
c.Execute.kernel_name = "python3"
c.Execute.timeout = 60

# The pages that students get hold nothing of a notebook's that acts or is fetched.
c.GenerateFeedback.exporter_class = "classroom.nbgrader.exporter.FeedbackExporter"

# Through nbgrader's exchange, checks are released with their notebook, submissions belong to the
# user whose files they are and count from the time at which they arrived, and pages go back,
# whatever is missing beside the page of somebody else.
c.ExchangeFactory.release_assignment = "classroom.nbgrader.exchange.ReleaseAssignment"
c.ExchangeFactory.collect = "classroom.nbgrader.exchange.Collect"
c.ExchangeFactory.release_feedback = "classroom.nbgrader.exchange.ReleaseFeedback"

# A cell that a student deleted comes back, and is graded.
c.OverwriteCells.add_missing_cells = True
