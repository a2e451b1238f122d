# Where nbgrader finds things. Stock commands work from the root of a clone:
#   nbgrader generate_assignment 01_attention
#   nbgrader autograde 01_attention && nbgrader generate_feedback 01_attention
from pathlib import Path

c = get_config()

c.CourseDirectory.course_id = "attention_from_the_ground_up"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"

# A release holds the notebook, its checks and the named mistakes. The text that the notebook is
# made from, with the solutions in it, and the differently written solutions stay here.
handed_out = {"checks.py", "mistakes.py"}
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints",
    "__pycache__",
    "*.pyc",
    *sorted({p.name for p in Path("solutions").glob("*/*.py")} - handed_out),
]

# The released exercises are part of a clone: releasing them again, which writes the same bytes, is
# how a new gradebook learns about an assignment.
c.GenerateAssignment.force = True

# Exercises are graded by the kernel of this environment, whatever the submission asks for.
c.Execute.kernel_name = "python3"
c.Execute.timeout = 60

# A cell that a student deleted comes back, and is graded.
c.OverwriteCells.add_missing_cells = True
