# What sealed grading needs, for instructors without Linux. The image holds Python, the packages of
# requirements.txt and bubblewrap; the course and the class stay outside, in your clone, which is
# mounted at /course. compose.yaml says with which rights it runs, and why:
#
#   docker compose run --rm grader classroom doctor
#   docker compose run --rm grader classroom grade 01_attention --workers 2
#
# Every part of this has been tried on Linux without Docker: the packages, an ordinary user, no
# privileges to gain, the sandbox within. The image itself has not been built by us yet, so trust
# what `classroom doctor` says in it, not this comment.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap libseccomp2 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /course

# Apart from the course itself, so that a change to it does not install everything again. The
# second index has torch without what only a GPU needs.
COPY requirements.txt requirements-learn.txt ./
RUN grep -hv '^-' requirements-learn.txt requirements.txt > /tmp/pinned.txt \
    && pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        -r /tmp/pinned.txt

# Installed as it is in a clone: what is mounted over it later is what runs.
COPY pyproject.toml README.md LICENSE ./
COPY lib lib
RUN pip install --no-cache-dir --no-deps -e .

# Whoever it runs as may have no home here.
ENV HOME=/tmp
RUN useradd --uid 1000 --no-create-home instructor
USER instructor

HEALTHCHECK --interval=1h --timeout=60s CMD ["classroom", "doctor"]
CMD ["classroom", "doctor"]
