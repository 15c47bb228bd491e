# What bash runs first in a terminal of JupyterLab: what it would run by itself, and then this.
[ -r /etc/bash.bashrc ] && . /etc/bash.bashrc
[ -r ~/.bashrc ] && . ~/.bashrc
# Users of the Hub have no line in the password file, from which a prompt takes the user's name.
id -un > /dev/null 2>&1 || PS1=${PS1//\\u/\$\{USER\}}
